#include "common/membership/retry_pause.h"

#include <gtest/gtest.h>

namespace optshard {
namespace {

TEST(RetryPause, AttemptsFail_DoublesUpToTheLongest) {
  RetryPause pause(absl::Milliseconds(10), absl::Milliseconds(35));
  EXPECT_EQ(pause.Next(), absl::Milliseconds(10));
  EXPECT_EQ(pause.Next(), absl::Milliseconds(20));
  EXPECT_EQ(pause.Next(), absl::Milliseconds(35));
  EXPECT_EQ(pause.Next(), absl::Milliseconds(35));
}

TEST(RetryPause, AttemptHasWorked_BeginsAnew) {
  RetryPause pause(absl::Milliseconds(10), absl::Seconds(1));
  for (int attempt = 0; attempt < 5; ++attempt) pause.Next();
  pause.Reset();
  EXPECT_EQ(pause.Next(), absl::Milliseconds(10));
}

}  // namespace
}  // namespace optshard
