#include "common/link/process_handle.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/in_child.h"

namespace optshard {
namespace {

absl::Time In(absl::Duration duration) { return Clock::Monotonic().Now() + duration; }

int Forever() {
  while (true) pause();
}

TEST(ProcessHandle, Gone_LivingStoppedKilledReaped_IsSoFromItsDeathOn) {
  testing::Child child(Forever);
  const absl::StatusOr<ProcessHandle> handle = ProcessHandle::Open(child.pid());
  ASSERT_TRUE(handle.ok()) << handle.status();
  EXPECT_EQ(handle->pid(), child.pid());
  EXPECT_FALSE(handle->Gone());
  ASSERT_EQ(kill(child.pid(), SIGSTOP), 0);
  EXPECT_EQ(waitpid(child.pid(), nullptr, WUNTRACED), child.pid());
  EXPECT_FALSE(handle->Gone());
  child.Kill();
  EXPECT_TRUE(handle->WaitUntilGone(In(absl::Seconds(30))));
  EXPECT_TRUE(handle->Gone());  // not reaped yet
  child.Wait();
  EXPECT_TRUE(handle->Gone());
  pollfd descriptor = {handle->fd(), POLLIN, 0};
  EXPECT_EQ(poll(&descriptor, 1, 0), 1);
}

TEST(ProcessHandle, Open_OfAnotherPidNamespace_IsRefused) {
  const absl::Status status = ProcessHandle::Open(0).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("shareProcessNamespace"));
}

TEST(ProcessHandle, WaitUntilGone_ItLives_EndsAtTheDeadline) {
  const absl::StatusOr<ProcessHandle> handle = ProcessHandle::Open(getpid());
  ASSERT_TRUE(handle.ok()) << handle.status();
  const absl::Time deadline = In(absl::Milliseconds(3));
  EXPECT_FALSE(handle->WaitUntilGone(deadline));
  EXPECT_GE(Clock::Monotonic().Now(), deadline);
}

TEST(ProcessHandle, WaitUntilGone_ItDiesMeanwhile_Returns) {
  testing::Child child(Forever);
  absl::StatusOr<ProcessHandle> opened = ProcessHandle::Open(child.pid());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const ProcessHandle handle = *std::move(opened);
  std::thread waiter([&] { EXPECT_TRUE(handle.WaitUntilGone(absl::InfiniteFuture())); });
  child.Kill();
  waiter.join();
}

TEST(ProcessHandle, Open_NoSuchProcess_IsNotFound) {
  testing::Child child([] { return 0; });
  child.Wait();
  const absl::Status status = ProcessHandle::Open(child.pid()).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(absl::StrCat(child.pid())));
}

TEST(ProcessHandle, Open_NoPid_IsRefused) {
  EXPECT_EQ(ProcessHandle::Open(-1).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace optshard
