#include "common/membership/member_inbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/errors.h"

namespace optshard {
namespace {

MemberEvent Plan(uint64_t sequence, Generation generation = 1) {
  MemberEvent event;
  event.sequence = sequence;
  event.kind = MemberEvent::Kind::kPlanReady;
  const auto ready = std::make_shared<PlanReady>();
  ready->plan.generation = generation;
  event.ready = ready;
  return event;
}

MemberEvent Failure(uint64_t sequence) {
  MemberEvent event;
  event.sequence = sequence;
  event.kind = MemberEvent::Kind::kGroupFailed;
  event.failure = errors::PeerLost(1, "killed");
  return event;
}

TEST(MemberInbox, NothingThere_WaitsEndWithNothing) {
  const MemberInbox inbox;
  EXPECT_FALSE(inbox.WaitForPlan(absl::Milliseconds(1)).has_value());
  EXPECT_FALSE(inbox.WaitForFailure(absl::ZeroDuration()).has_value());
  EXPECT_TRUE(inbox.failure().ok());
}

TEST(MemberInbox, WaitForPlanEnded_ReturnsAtOnceUnlessThePlanIsThere) {
  MemberInbox inbox;
  inbox.EndWaitForPlan();
  EXPECT_FALSE(inbox.WaitForPlan(absl::Hours(1)).has_value());
  inbox.Deliver(Plan(1));
  EXPECT_TRUE(inbox.WaitForPlan(absl::Hours(1))->ok());
}

TEST(MemberInbox, SameEventAgain_ChangesNothing) {
  MemberInbox inbox;
  inbox.Deliver(Plan(1));
  inbox.Deliver(Plan(1, 99));
  EXPECT_EQ((*inbox.WaitForPlan(absl::ZeroDuration()))->ready->plan.generation, 1u);
  EXPECT_EQ(inbox.last_sequence(), 1u);
}

TEST(MemberInbox, ProgressWanted_IsNoFailureAndCounts) {
  MemberInbox inbox;
  MemberEvent event;
  event.kind = MemberEvent::Kind::kProgressWanted;
  event.sequence = 2;
  inbox.Deliver(event);
  EXPECT_EQ(inbox.last_sequence(), 2u);
  EXPECT_FALSE(inbox.WaitForFailure(absl::ZeroDuration()).has_value());
  EXPECT_TRUE(inbox.failure().ok());
}

TEST(MemberInbox, FailureTwice_CallsBackOnceWithTheFirst) {
  MemberInbox inbox;
  int calls = 0;
  absl::Status seen;
  inbox.OnFailure([&](const absl::Status& status) {
    ++calls;
    seen = status;
  });
  inbox.Deliver(Failure(1));
  inbox.DeliverFailure(absl::InternalError("later"));
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(errors::IsPeerLost(seen));
  EXPECT_EQ(inbox.failure(), seen);
  EXPECT_EQ(inbox.WaitForFailure(absl::ZeroDuration()), seen);
}

TEST(MemberInbox, CallbackSetAfterTheFailure_RunsAtOnce) {
  MemberInbox inbox;
  inbox.Deliver(Failure(1));
  int calls = 0;
  inbox.OnFailure([&](const absl::Status&) { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(MemberInbox, EndCallbacks_WaitsForTheOneThatRuns) {
  MemberInbox inbox;
  absl::Notification runs;
  absl::Notification ending;
  std::atomic<bool> done{false};
  inbox.OnFailure([&](const absl::Status&) {
    runs.Notify();
    ending.WaitForNotification();
    // For one that does not wait to be through.
    absl::SleepFor(absl::Milliseconds(1));
    done = true;
  });
  std::thread deliverer([&] { inbox.Deliver(Failure(1)); });
  runs.WaitForNotification();
  ending.Notify();
  inbox.EndCallbacks();
  EXPECT_TRUE(done);
  deliverer.join();
}

TEST(MemberInbox, EndCallbacks_NoneComesAfter) {
  MemberInbox inbox;
  int calls = 0;
  inbox.OnFailure([&](const absl::Status&) { ++calls; });
  inbox.EndCallbacks();
  inbox.Deliver(Failure(1));
  EXPECT_EQ(calls, 0);
}

TEST(MemberInbox, FailureAfterThePlan_IsWhatWaitersGet) {
  MemberInbox inbox;
  inbox.Deliver(Plan(1));
  inbox.Deliver(Failure(2));
  EXPECT_TRUE(errors::IsPeerLost(inbox.WaitForPlan(absl::ZeroDuration())->status()));
}

}  // namespace
}  // namespace optshard
