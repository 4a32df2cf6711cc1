#include "server/coordinator/running_time.h"

#include <gtest/gtest.h>

namespace optshard {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);
constexpr absl::Duration kStep = absl::Milliseconds(100);

TEST(RunningTime, ShortSteps_CountInFull) {
  RunningTime time(kStep);
  const absl::Time start = time.Observe(kStart);
  EXPECT_EQ(time.Observe(kStart + kStep) - start, kStep);
  EXPECT_EQ(time.Observe(kStart + 2 * kStep) - start, 2 * kStep);
}

TEST(RunningTime, LongStep_CountsAsTheLongest) {
  RunningTime time(kStep);
  const absl::Time start = time.Observe(kStart);
  EXPECT_EQ(time.Observe(kStart + absl::Seconds(7)) - start, kStep);
  EXPECT_EQ(time.Observe(kStart + absl::Seconds(7) + kStep) - start, 2 * kStep);
}

TEST(RunningTime, OlderReading_DoesNotGoBack) {
  RunningTime time(kStep);
  const absl::Time start = time.Observe(kStart);
  EXPECT_EQ(time.Observe(kStart - absl::Seconds(1)), start);
  EXPECT_EQ(time.Observe(kStart + kStep) - start, kStep);
}

TEST(RunningTime, LongPause_IsRemembered) {
  RunningTime time(kStep);
  time.Observe(kStart);
  time.Observe(kStart + absl::Milliseconds(999));
  EXPECT_EQ(time.last_long_pause(), absl::InfinitePast());
  const absl::Time after = time.Observe(kStart + absl::Seconds(2));
  EXPECT_EQ(time.last_long_pause(), after);
  time.Observe(kStart + absl::Seconds(2) + kStep);
  EXPECT_EQ(time.last_long_pause(), after);
}

TEST(RunningTime, At_SaysWhatObserveWouldAndChangesNothing) {
  RunningTime time(kStep);
  const absl::Time start = time.Observe(kStart);
  EXPECT_EQ(time.At(kStart + absl::Seconds(7)) - start, kStep);
  EXPECT_EQ(time.Observe(kStart + kStep / 2) - start, kStep / 2);
}

}  // namespace
}  // namespace optshard
