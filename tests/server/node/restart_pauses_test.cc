#include "server/node/restart_pauses.h"

#include "gtest/gtest.h"

namespace optshard {
namespace {

constexpr absl::Duration kShort = absl::Seconds(1);
constexpr absl::Duration kLong = absl::Seconds(11);

RestartPauses Pauses() {
  return RestartPauses(absl::Milliseconds(20), absl::Milliseconds(70), absl::Seconds(10));
}

TEST(RestartPauses, ShortLives_PausesDoubleUpToTheLongest) {
  RestartPauses pauses = Pauses();
  for (int milliseconds : {0, 20, 40, 70, 70}) {
    EXPECT_EQ(pauses.Next(kShort), absl::Milliseconds(milliseconds));
  }
}

TEST(RestartPauses, LongLife_StartsOver) {
  RestartPauses pauses = Pauses();
  pauses.Next(kShort);
  pauses.Next(kShort);
  EXPECT_EQ(pauses.Next(kLong), absl::ZeroDuration());
  EXPECT_EQ(pauses.Next(kShort), absl::Milliseconds(20));
}

TEST(RestartPauses, LongLives_NeverPause) {
  RestartPauses pauses = Pauses();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(pauses.Next(kLong), absl::ZeroDuration());
}

TEST(RestartPauses, FirstLongerThanLongest_PausesForTheLongest) {
  RestartPauses pauses(absl::Seconds(5), absl::Seconds(2), absl::Seconds(10));
  pauses.Next(kShort);
  EXPECT_EQ(pauses.Next(kShort), absl::Seconds(2));
}

}  // namespace
}  // namespace optshard
