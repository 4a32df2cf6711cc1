#include "common/cancellation.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/synchronization/notification.h"

namespace optshard {
namespace {

const absl::Status kReason = absl::UnavailableError("shutting down");

TEST(Cancellation, Cancel_EndsWaitsNowAndLater) {
  Cancellation cancellation;
  EXPECT_FALSE(cancellation.WaitFor(absl::ZeroDuration()));
  EXPECT_TRUE(cancellation.reason().ok());
  std::thread waiter([&] { EXPECT_TRUE(cancellation.WaitFor(absl::Seconds(20))); });
  cancellation.Cancel(kReason);
  waiter.join();
  EXPECT_TRUE(cancellation.WaitFor(absl::Seconds(20)));
  EXPECT_EQ(cancellation.reason(), kReason);
}

TEST(Cancellation, CancelTwice_KeepsTheFirstReasonAndCallsBackOnce) {
  Cancellation cancellation;
  int calls = 0;
  const Cancellation::Callback callback(&cancellation, [&] { ++calls; });
  cancellation.Cancel(kReason);
  cancellation.Cancel(absl::InternalError("later"));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(cancellation.reason(), kReason);
}

TEST(Cancellation, CallbackThatComesLate_RunsAtOnce) {
  Cancellation cancellation;
  cancellation.Cancel(kReason);
  int calls = 0;
  const Cancellation::Callback callback(&cancellation, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(Cancellation, CallbackThatHasEnded_DoesNotRun) {
  Cancellation cancellation;
  int calls = 0;
  {
    const Cancellation::Callback callback(&cancellation, [&] { ++calls; });
  }
  {
    const Cancellation::Callback never(nullptr, [&] { ++calls; });
  }
  cancellation.Cancel(kReason);
  EXPECT_EQ(calls, 0);
}

TEST(Cancellation, CallbackEndsWhileItRuns_WaitsForIt) {
  Cancellation cancellation;
  absl::Notification begun;
  absl::Notification may_end;
  bool over = false;
  std::thread canceller;
  std::thread releaser;
  {
    const Cancellation::Callback callback(&cancellation, [&] {
      begun.Notify();
      may_end.WaitForNotification();
      over = true;
    });
    canceller = std::thread([&] { cancellation.Cancel(kReason); });
    begun.WaitForNotification();
    releaser = std::thread([&] { may_end.Notify(); });
  }
  EXPECT_TRUE(over);
  canceller.join();
  releaser.join();
}

}  // namespace
}  // namespace optshard
