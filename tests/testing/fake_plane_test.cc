// What the fake plane does beyond the conformance suite: it catches engines that read too early or
// overwrite too early, and it injects faults.
#include "tests/testing/fake_plane.h"

#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/errors.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_stream.h"

namespace optshard::testing {
namespace {

const ExecutionContext kHost;
const std::vector<Rank> kBoth = {0, 1};
const std::vector<Rank> kThree = {0, 1, 2};
const StepTag kTag{1, 1, 0, StepPhase::kPublish};

absl::Time Soon() { return Clock::Monotonic().Now() + absl::Seconds(30); }

FakeHub::Options Delayed(int world_size) {
  FakeHub::Options options;
  options.world_size = world_size;
  options.mode = FakeHub::Mode::kDelayed;
  return options;
}

FakeHub::Options Immediate(int world_size) {
  FakeHub::Options options;
  options.world_size = world_size;
  return options;
}

TEST(FakePlane, DelayedOutput_BeforeTheWait_IsNotThere) {
  FakeHub hub(Delayed(2));
  const auto owner = hub.MakePlane(0), other = hub.MakePlane(1);
  int sent = 42, received = 7;
  auto send = owner->Publish(kTag, kHost, 0, kBoth, &sent, sizeof(sent));
  auto receive = other->Publish(kTag, kHost, 0, kBoth, &received, sizeof(received));
  ASSERT_TRUE((*send)->Wait(Soon()).ok());
  EXPECT_EQ(received, -1);  // 0xff bytes
  ASSERT_TRUE((*receive)->Wait(Soon()).ok());
  EXPECT_EQ(received, 42);
}

TEST(FakePlane, ImmediateOutput_OnceAllHaveStarted_IsThere) {
  FakeHub hub(Immediate(2));
  const auto owner = hub.MakePlane(0), other = hub.MakePlane(1);
  int sent = 42, received = 7;
  auto receive = other->Publish(kTag, kHost, 0, kBoth, &received, sizeof(received));
  auto send = owner->Publish(kTag, kHost, 0, kBoth, &sent, sizeof(sent));
  EXPECT_EQ(received, 42);
  EXPECT_TRUE((*send)->Wait(Soon()).ok());
  EXPECT_TRUE((*receive)->Wait(Soon()).ok());
}

TEST(FakePlane, DelayedInput_OverwrittenBeforeTheWait_FailsEverywhere) {
  FakeHub hub(Delayed(2));
  const auto owner = hub.MakePlane(0), other = hub.MakePlane(1);
  int sent = 42, received = 7;
  auto send = owner->Publish(kTag, kHost, 0, kBoth, &sent, sizeof(sent));
  auto receive = other->Publish(kTag, kHost, 0, kBoth, &received, sizeof(received));
  sent = 43;
  EXPECT_EQ((*receive)->Wait(Soon()).code(), absl::StatusCode::kInternal);
  EXPECT_EQ((*send)->Wait(Soon()).code(), absl::StatusCode::kInternal);
}

TEST(FakePlane, DelayedInput_OverwrittenAfterTheWait_IsFine) {
  FakeHub hub(Delayed(2));
  const auto owner = hub.MakePlane(0), other = hub.MakePlane(1);
  int sent = 42, received = 7;
  auto send = owner->Publish(kTag, kHost, 0, kBoth, &sent, sizeof(sent));
  ASSERT_TRUE((*send)->Wait(Soon()).ok());
  sent = 43;
  auto receive = other->Publish(kTag, kHost, 0, kBoth, &received, sizeof(received));
  ASSERT_TRUE((*receive)->Wait(Soon()).ok());
  EXPECT_EQ(received, 42);
}

TEST(FakePlane, OrderOn_Stream_DeliversWhenItIsSynchronised) {
  FakeHub hub(Delayed(2));
  const auto owner = hub.MakePlane(0), other = hub.MakePlane(1);
  FakeStream stream;
  int sent = 42, received = 7, seen_on_stream = 0;
  auto send = owner->Publish(kTag, kHost, 0, kBoth, &sent, sizeof(sent));
  auto receive = other->Publish(kTag, stream.context(), 0, kBoth, &received, sizeof(received));
  ASSERT_TRUE((*receive)->OrderOn(stream.context()).ok());
  stream.Enqueue([&](absl::Time) {
    seen_on_stream = received;
    return absl::OkStatus();
  });
  EXPECT_EQ(received, -1);
  ASSERT_TRUE(stream.Synchronize(Soon()).ok());
  EXPECT_EQ(seen_on_stream, 42);
  EXPECT_TRUE((*receive)->Wait(Soon()).ok());
  EXPECT_TRUE((*send)->Wait(Soon()).ok());
}

TEST(FakePlane, Operations_ThatDiffer_AreToldOnAllRanks) {
  FakeHub hub(Immediate(2));
  const auto first = hub.MakePlane(0), second = hub.MakePlane(1);
  int value = 0;
  auto ticket = first->Publish(kTag, kHost, 0, kBoth, &value, sizeof(value));
  StepTag other_bucket = kTag;
  other_bucket.bucket = 9;
  auto refused = second->Publish(other_bucket, kHost, 0, kBoth, &value, sizeof(value));
  EXPECT_TRUE(errors::IsRanksDisagree(refused.status())) << refused.status();
  EXPECT_TRUE(errors::IsRanksDisagree((*ticket)->Wait(Soon())));
}

TEST(FakePlane, KillAt_NthOperation_IsLostToTheOthersAtOnce) {
  FakeHub hub(Immediate(3));
  std::vector<std::unique_ptr<DataPlane>> planes;
  for (int rank = 0; rank < 3; ++rank) planes.push_back(hub.MakePlane(rank));
  hub.KillAt(1, 1);
  int values[3] = {1, 2, 3};
  std::vector<std::unique_ptr<Ticket>> tickets;
  for (int rank = 0; rank < 3; ++rank) {
    tickets.push_back(*planes[rank]->Publish(kTag, kHost, 0, kThree, &values[rank], sizeof(int)));
    ASSERT_TRUE(tickets.back()->Wait(Soon()).ok());
  }
  auto waiting = planes[0]->Publish(kTag, kHost, 1, kThree, &values[0], sizeof(int));
  ASSERT_TRUE(waiting.ok());
  EXPECT_EQ(planes[1]->Publish(kTag, kHost, 1, kThree, &values[1], sizeof(int)).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(errors::RanksOf((*waiting)->Wait(Soon())), std::vector<Rank>{1});
  const absl::Status later =
      planes[2]->Publish(kTag, kHost, 1, kThree, &values[2], sizeof(int)).status();
  EXPECT_TRUE(errors::IsPeerLost(later)) << later;
  EXPECT_EQ(hub.OperationsStarted(1), 2);
}

TEST(FakePlane, HangAt_NthOperation_TimesOutTheOthersNamingIt) {
  FakeHub hub(Immediate(2));
  const auto first = hub.MakePlane(0), second = hub.MakePlane(1);
  hub.HangAt(1, 0);
  int mine = 1, other = 2;
  absl::Status hung;
  std::thread thread(
      [&] { hung = second->Publish(kTag, kHost, 1, kBoth, &other, sizeof(other)).status(); });
  EXPECT_TRUE(hub.AwaitHung(1, Soon()));
  auto ticket = first->Publish(kTag, kHost, 1, kBoth, &mine, sizeof(mine));
  const absl::Status status = (*ticket)->Wait(Clock::Monotonic().Now() + absl::Milliseconds(20));
  EXPECT_TRUE(errors::IsPeersTimedOut(status)) << status;
  EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{1});
  hub.ReleaseHung();
  thread.join();
  EXPECT_FALSE(hung.ok());
}

}  // namespace
}  // namespace optshard::testing
