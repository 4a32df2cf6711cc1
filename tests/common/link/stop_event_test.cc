#include "common/link/stop_event.h"

#include <unistd.h>

#include "common/clock.h"
#include "common/link/poll_until.h"
#include "gtest/gtest.h"
#include "tests/testing/in_child.h"

namespace optshard {
namespace {

TEST(StopEvent_Signalled_IsReadable, AlsoTwice) {
  const absl::StatusOr<StopEvent> stop = StopEvent::Create();
  ASSERT_TRUE(stop.ok()) << stop.status();
  EXPECT_FALSE(PollUntil(stop->fd(), POLLIN, absl::InfinitePast()));
  stop->Signal();
  EXPECT_TRUE(PollUntil(stop->fd(), POLLIN, absl::InfinitePast()));
  stop->Signal();
  EXPECT_TRUE(PollUntil(stop->fd(), POLLIN, absl::InfinitePast()));
}

TEST(StopEvent_NoMoreDescriptors_IsRefused, WithTheCode) {
  testing::Child child([] {
    while (dup(STDERR_FILENO) >= 0) {
    }
    return absl::IsResourceExhausted(StopEvent::Create().status()) ? 0 : 1;
  });
  EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace optshard
