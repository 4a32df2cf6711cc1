// The coordinator's server and the members' client against each other, over loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/cancellation.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/incarnation.h"
#include "common/membership/coordinator_client_rpc.h"
#include "common/membership/member_session_rpc.h"
#include "common/rpc/channel_rpc.h"
#include "server/coordinator/coordinator_server.h"
#include "tests/server/coordinator/join_requests.h"
#include "tests/testing/fake_clock.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Time In(absl::Duration time) { return Clock::Monotonic().Now() + time; }

// The failure that a member is told of, which can be waited for.
class Told {
 public:
  void Tell(const absl::Status& failure) {
    absl::MutexLock lock(&mutex_);
    failure_ = failure;
  }
  bool HasCome() const {
    absl::MutexLock lock(&mutex_);
    return !failure_.ok();
  }
  absl::Status Wait() const {
    absl::MutexLock lock(&mutex_);
    const auto has_come = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !failure_.ok(); };
    mutex_.AwaitWithTimeout(absl::Condition(&has_come), absl::Seconds(20));
    return failure_;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

struct Member {
  std::shared_ptr<Told> told = std::make_shared<Told>();
  std::unique_ptr<MemberSession> session;

  absl::Status Failure() const { return told->Wait(); }
};

class CoordinatorRpcTest : public ::testing::Test {
 protected:
  CoordinatorRpcTest() {
    // The fake clock goes much faster than heartbeats come.
    options_.coordinator.group.liveness.lease = absl::Hours(1000);
  }

  void Start(int world_size, Rank host_rank = -1) {
    world_size_ = world_size;
    options_.coordinator.clock = &clock_;
    options_.coordinator.group.world_size = world_size;
    options_.coordinator.group.host_rank = host_rank;
    options_.tick = absl::Milliseconds(5);
    server_ = CoordinatorServer::Start(options_).value();
  }

  absl::StatusOr<Member> Join(Rank rank) { return Join(TestJoin(rank, world_size_)); }

  absl::StatusOr<Member> Join(const JoinRequest& request) {
    // A client each, as separate processes have.
    absl::StatusOr<std::unique_ptr<CoordinatorClient>> client =
        MakeCoordinatorClient(server_->address());
    if (!client.ok()) return client.status();
    absl::StatusOr<std::unique_ptr<MemberSession>> session =
        (*client)->Join(request, In(absl::Seconds(20)));
    if (!session.ok()) return session.status();
    Member member;
    member.session = *std::move(session);
    member.session->OnFailure(
        [told = member.told](const absl::Status& failure) { told->Tell(failure); });
    return member;
  }

  std::vector<Member> JoinAll() {
    std::vector<Member> members;
    for (Rank rank = 0; rank < world_size_; ++rank) members.push_back(Join(rank).value());
    for (Member& member : members) {
      EXPECT_TRUE(member.session->WaitForPlan(In(absl::Seconds(20))).ok());
    }
    return members;
  }

  // Time that the coordinator sees pass. What passes unseen is a pause to it.
  void Pass(absl::Duration step) {
    clock_.Advance(step);
    server_->coordinator().Tick();
  }

  // Time that passes only for the coordinator. Real time goes on until `done`.
  template <typename Condition>
  bool PassUntil(Condition done) {
    const absl::Time deadline = In(absl::Seconds(20));
    while (!done()) {
      if (Clock::Monotonic().Now() > deadline) return false;
      Pass(absl::Milliseconds(20));
      std::this_thread::yield();
    }
    return true;
  }

  GroupStatus Group() { return server_->coordinator().GetStatus("default").groups.at(0); }

  int world_size_ = 0;
  FakeClock clock_;
  CoordinatorServer::Options options_;
  std::unique_ptr<CoordinatorServer> server_;
};

TEST_F(CoordinatorRpcTest, AllJoin_EachGetsThePlanAndTheOwners) {
  Start(3);
  std::vector<Member> members;
  for (Rank rank : {2, 0, 1}) members.push_back(Join(rank).value());
  for (Member& member : members) {
    const absl::StatusOr<MemberEvent> event = member.session->WaitForPlan(In(absl::Seconds(20)));
    ASSERT_TRUE(event.ok()) << event.status();
    EXPECT_EQ(event->ready->plan.generation, 1u);
    EXPECT_EQ(event->ready->plan.world_size, 3);
    EXPECT_TRUE(
        CheckPartition(TestSpace(), event->ready->plan.partition, event->ready->plan.policy).ok());
    EXPECT_THAT(event->ready->plan.tree.node_groups, ElementsAre(ElementsAre(0, 1, 2)));
    EXPECT_THAT(event->ready->owner_address,
                ElementsAre("127.0.0.1:4000", "127.0.0.1:4001", "127.0.0.1:4002"));
  }
  EXPECT_EQ(members[0].session->id().rank, 2);
  EXPECT_EQ(CountOf(members[0].session->id().incarnation), 1u);
}

TEST_F(CoordinatorRpcTest, RefusedJoin_KeepsCodeTextAndKind) {
  Start(2);
  Member first = Join(0).value();
  JoinRequest taken = TestJoin(0, 2);
  taken.request_id = "";
  EXPECT_TRUE(absl::IsAlreadyExists(Join(taken).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Join(TestJoin(5, 2)).status()));
  JoinRequest other = TestJoin(1, 2);
  other.spec.space = TestSpace(5);
  const absl::Status status = Join(other).status();
  EXPECT_TRUE(errors::IsRanksDisagree(status)) << status;
  EXPECT_THAT(errors::RanksOf(status), ElementsAre(1));
  const absl::Status told = first.session->WaitForPlan(In(absl::Seconds(20))).status();
  EXPECT_EQ(told, status);
}

TEST_F(CoordinatorRpcTest, RankNeverComes_MembersDeadlineNamesIt) {
  Start(3);
  Member first = Join(1).value();
  const absl::Status status = first.session->WaitForPlan(In(absl::Milliseconds(50))).status();
  EXPECT_TRUE(errors::IsPeersTimedOut(status));
  EXPECT_THAT(errors::RanksOf(status), ElementsAre(0, 2));
}

TEST_F(CoordinatorRpcTest, SessionEndsWithoutLeave_TheOthersAreToldAtOnce) {
  Start(3);
  std::vector<Member> members = JoinAll();
  members[1].session.reset();
  ASSERT_TRUE(PassUntil([&] { return members[0].told->HasCome(); }));
  EXPECT_TRUE(errors::IsPeerLost(members[0].Failure()));
  EXPECT_THAT(errors::RanksOf(members[0].Failure()), ElementsAre(1));
  EXPECT_THAT(members[0].Failure().ToString(), HasSubstr("connection to the coordinator broke"));
  EXPECT_EQ(members[2].Failure(), members[0].Failure());
}

TEST_F(CoordinatorRpcTest, AttributedFailure_ReachesTheReporterAndNamesTheDead) {
  Start(3);
  std::vector<Member> members = JoinAll();
  members[1].session.reset();
  absl::Status cause;
  std::atomic<bool> there{false};
  std::thread reporter([&] {
    cause = members[2].session->ReportFailure({4, StepOutcome::kInDoubt}, 0,
                                              errors::PeerLost(0, "connection reset"),
                                              In(absl::Seconds(20)));
    there = true;
  });
  EXPECT_TRUE(PassUntil([&] { return there.load(); }));
  reporter.join();
  EXPECT_TRUE(errors::IsPeerLost(cause));
  EXPECT_THAT(errors::RanksOf(cause), ElementsAre(1));
  EXPECT_TRUE(Group().torn);
  EXPECT_EQ(Group().members[2].progress.finished, 4u);
}

TEST_F(CoordinatorRpcTest, FailureIsNotAttributed_ReporterGetsWhatItSaw) {
  Start(2);
  std::vector<Member> members = JoinAll();
  // The clock stands still: the coordinator never decides.
  const absl::Status observed = errors::PeerLost(1, "connection reset");
  EXPECT_EQ(members[0].session->ReportFailure({}, 1, observed, In(absl::Milliseconds(100))),
            observed);
}

TEST_F(CoordinatorRpcTest, LeaseRunsOut_NamesTheSilentRank) {
  options_.coordinator.group.liveness.lease = absl::Seconds(5);
  Start(1);
  std::vector<Member> members = JoinAll();
  ASSERT_TRUE(PassUntil([&] { return members[0].told->HasCome(); }));
  EXPECT_TRUE(errors::IsPeerLost(members[0].Failure()));
  EXPECT_THAT(members[0].Failure().ToString(), HasSubstr("lease is 5s"));
}

TEST_F(CoordinatorRpcTest, Rendezvous_WaitsAndKeepsBytes) {
  Start(2);
  std::vector<Member> members = JoinAll();
  const std::string value("a\0\xff b", 5);
  absl::StatusOr<std::string> got;
  std::thread getter(
      [&] { got = members[0].session->rendezvous().Get("key", In(absl::Seconds(20))); });
  EXPECT_TRUE(members[1].session->rendezvous().Put("key", value).ok());
  getter.join();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, value);
  EXPECT_TRUE(members[1].session->rendezvous().Put("key", value).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(members[0].session->rendezvous().Put("key", "other")));
}

TEST_F(CoordinatorRpcTest, RendezvousKeyNeverWritten_DeadlineNamesIt) {
  Start(1);
  std::vector<Member> members = JoinAll();
  absl::Status status;
  std::atomic<bool> there{false};
  std::thread getter([&] {
    status = members[0].session->rendezvous().Get("missing", In(absl::Milliseconds(50))).status();
    there = true;
  });
  // The coordinator's wait is on its own clock.
  while (!there) Pass(absl::Milliseconds(1));
  getter.join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(status.ToString(), HasSubstr("\"missing\""));
}

TEST_F(CoordinatorRpcTest, AllLeave_IsDoneAndNobodyIsLost) {
  Start(2);
  std::vector<Member> members = JoinAll();
  members[0].session->SetProgress({3, StepOutcome::kIdle});
  EXPECT_TRUE(members[0].session->Leave(In(absl::Seconds(20))).ok());
  EXPECT_TRUE(members[0].session->Leave(In(absl::Seconds(20))).ok());
  members[0].session.reset();
  EXPECT_EQ(Group().members[0].state, MemberState::kLeft);
  EXPECT_EQ(Group().members[0].progress.finished, 3u);
  EXPECT_FALSE(members[1].told->HasCome());
  EXPECT_TRUE(members[1].session->Leave(In(absl::Seconds(20))).ok());
  EXPECT_TRUE(server_->WaitUntilDone(absl::Seconds(20)));
  EXPECT_EQ(Group().state, GroupState::kFinished);
}

TEST_F(CoordinatorRpcTest, KilledAndBackWithItsState_AllGoOnByTheNextPlan) {
  Start(2);
  std::vector<Member> members = JoinAll();
  members[1].session.reset();
  std::vector<Member> successors;
  for (Rank rank : {1, 0}) {
    JoinRequest request = TestJoin(rank, 2);
    request.request_id = "";
    request.resumes = KeptState{1, {12, StepOutcome::kApplied}};
    successors.push_back(Join(request).value());
    // Unnoticed so far: that rank 1 is back tells rank 0's former session.
    EXPECT_THAT(errors::RanksOf(members[0].Failure()), ElementsAre(1));
  }
  for (Member& member : successors) {
    const absl::StatusOr<MemberEvent> event = member.session->WaitForPlan(In(absl::Seconds(20)));
    ASSERT_TRUE(event.ok()) << event.status();
    EXPECT_EQ(event->ready->plan.generation, 2u);
    EXPECT_EQ(event->ready->finished, 13u);
    EXPECT_EQ(CountOf(member.session->id().incarnation), 2u);
  }
  EXPECT_TRUE(members[0].session->Leave(In(absl::Seconds(20))).ok());
  EXPECT_EQ(Group().members[0].state, MemberState::kActive);
}

TEST_F(CoordinatorRpcTest, SessionThatNobodyKnows_IsToldAsSoonAsThereIsAGroupWithoutIt) {
  Start(1);
  JoinReply reply;
  reply.incarnation = 7;
  reply.lease = absl::Seconds(5);
  reply.heartbeat_period = absl::Milliseconds(5);
  Member forgotten;
  forgotten.session = StartMemberSession(server_->address(), MakeChannel(server_->address()),
                                         {"optshard", "default", 0, reply.incarnation}, reply);
  forgotten.session->OnFailure(
      [told = forgotten.told](const absl::Status& failure) { told->Tell(failure); });
  // The coordinator may just have been started again: steps go on.
  EXPECT_TRUE(errors::IsPeersTimedOut(
      forgotten.session->WaitForPlan(In(absl::Milliseconds(200))).status()));
  EXPECT_FALSE(forgotten.told->HasCome());
  Member successor = Join(0).value();
  EXPECT_TRUE(errors::IsStaleIncarnation(forgotten.Failure())) << forgotten.Failure();
  EXPECT_EQ(forgotten.session->WaitForPlan(In(absl::Seconds(20))).status(), forgotten.Failure());
  EXPECT_FALSE(successor.told->HasCome());
}

TEST_F(CoordinatorRpcTest, GetStatus_TellsWhatTheDomainKnows) {
  Start(2);
  std::vector<Member> members = JoinAll();
  const auto client = MakeCoordinatorClient(server_->address()).value();
  const absl::StatusOr<JobStatus> status = client->GetStatus(In(absl::Seconds(20)));
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->job, "optshard");
  ASSERT_EQ(status->groups.size(), 1u);
  EXPECT_EQ(Summary(status->groups[0]), Summary(Group()));
  EXPECT_EQ(status->groups[0].members[1].pid, 101);
  EXPECT_EQ(status->groups[0].members[1].state, MemberState::kActive);
}

TEST_F(CoordinatorRpcTest, CoordinatorStops_StepsGoOnAndReportersAreNotKept) {
  Start(2);
  std::vector<Member> members = JoinAll();
  server_->Stop(absl::Seconds(1));
  const absl::Status observed = errors::PeerLost(1, "connection reset");
  EXPECT_EQ(members[0].session->ReportFailure({}, 1, observed, In(absl::Seconds(60))), observed);
  EXPECT_FALSE(members[0].told->HasCome());
  EXPECT_TRUE(absl::IsUnavailable(members[0].session->Leave(In(absl::Milliseconds(100)))));
}

TEST_F(CoordinatorRpcTest, CoordinatorsHostDies_ItIsTheOneLost) {
  Start(3, 0);
  std::vector<Member> members = JoinAll();
  server_->Stop(absl::Seconds(1));
  const absl::Status cause = members[2].session->ReportFailure(
      {}, 1, errors::PeerLost(1, "connection reset"), In(absl::Seconds(60)));
  EXPECT_TRUE(errors::IsPeerLost(cause));
  EXPECT_THAT(errors::RanksOf(cause), ElementsAre(0));
}

TEST_F(CoordinatorRpcTest, StopWithStreamsAndWaitsOpen_ReturnsSoon) {
  Start(2);
  Member forming = Join(0).value();
  Member other = Join(TestJoin(0, 2, "other")).value();
  Member second = Join(TestJoin(1, 2, "other")).value();
  ASSERT_TRUE(other.session->WaitForPlan(In(absl::Seconds(20))).ok());
  std::thread getter(
      [&] { EXPECT_FALSE(other.session->rendezvous().Get("never", In(absl::Seconds(60))).ok()); });
  const absl::Time start = Clock::Monotonic().Now();
  server_->Stop(absl::Seconds(10));
  EXPECT_LT(Clock::Monotonic().Now() - start, absl::Seconds(8));
  getter.join();
}

TEST_F(CoordinatorRpcTest, StopAfterAWaitOfBeforeThePlan_ReturnsSoon) {
  Start(2);
  Member first = Join(0).value();
  std::thread getter(
      [&] { EXPECT_FALSE(first.session->rendezvous().Get("k", In(absl::Seconds(60))).ok()); });
  Member second = Join(1).value();
  ASSERT_TRUE(first.session->WaitForPlan(In(absl::Seconds(20))).ok());
  const absl::Time start = Clock::Monotonic().Now();
  server_->Stop(absl::Seconds(10));
  EXPECT_LT(Clock::Monotonic().Now() - start, absl::Seconds(8));
  getter.join();
}

TEST_F(CoordinatorRpcTest, CoordinatorStartsLater_JoinFindsIt) {
  Start(1);
  const int port = server_->port();
  server_->Stop(absl::Seconds(1));
  server_.reset();
  std::thread starter([&] {
    options_.listen = absl::StrCat("127.0.0.1:", port);
    server_ = CoordinatorServer::Start(options_).value();
  });
  const auto client = MakeCoordinatorClient(absl::StrCat("127.0.0.1:", port)).value();
  const auto session = client->Join(TestJoin(0, 1), In(absl::Seconds(20)));
  starter.join();
  EXPECT_TRUE(session.ok()) << session.status();
}

TEST_F(CoordinatorRpcTest, CoordinatorStartedAnew_SessionOfTheFormerRunIsNotTakenForTheNewOne) {
  Start(1);
  Member former = std::move(JoinAll()[0]);
  options_.listen = server_->address();
  server_.reset();
  server_ = CoordinatorServer::Start(options_).value();
  Member successor = Join(0).value();
  EXPECT_TRUE(errors::IsStaleIncarnation(former.Failure())) << former.Failure();
  EXPECT_TRUE(successor.session->WaitForPlan(In(absl::Seconds(20))).ok());
  EXPECT_FALSE(successor.told->HasCome());
}

TEST_F(CoordinatorRpcTest, CancelledWhileOthersAreAwaited_EndsTheWaitAndLeaveStillWorks) {
  Start(2);
  const auto client = MakeCoordinatorClient(server_->address()).value();
  Cancellation cancellation;
  const auto session = client->Join(TestJoin(0, 2), In(absl::Seconds(20)), &cancellation).value();
  std::thread canceller([&] { cancellation.Cancel(absl::UnavailableError("shutting down")); });
  const absl::Status status = session->WaitForPlan(In(absl::Hours(1))).status();
  canceller.join();
  EXPECT_EQ(status, absl::UnavailableError("shutting down"));
  EXPECT_TRUE(session->Leave(In(absl::Seconds(20))).ok());
  EXPECT_EQ(Group().members[0].state, MemberState::kMissing);
}

TEST_F(CoordinatorRpcTest, CancelledWhileNobodyListens_EndsTheJoin) {
  Start(1);
  const std::string address = server_->address();
  server_.reset();
  const auto client = MakeCoordinatorClient(address).value();
  Cancellation cancellation;
  std::thread canceller([&] { cancellation.Cancel(absl::UnavailableError("shutting down")); });
  const absl::Status status =
      client->Join(TestJoin(0, 1), In(absl::Hours(1)), &cancellation).status();
  canceller.join();
  EXPECT_EQ(status, absl::UnavailableError("shutting down"));
}

TEST_F(CoordinatorRpcTest, NobodyListens_JoinNamesTheAddressAndHowLongItTried) {
  Start(1);
  const std::string address = server_->address();
  server_.reset();
  const auto client = MakeCoordinatorClient(address).value();
  const absl::Status status = client->Join(TestJoin(0, 1), In(absl::Milliseconds(300))).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(status.ToString(), AllOf(HasSubstr(address), HasSubstr("tried for")));
}

TEST_F(CoordinatorRpcTest, PortTaken_IsAnErrorNamingTheAddress) {
  Start(1);
  CoordinatorServer::Options options = options_;
  options.listen = server_->address();
  const absl::Status status = CoordinatorServer::Start(options).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(status.ToString(), HasSubstr(options.listen));
}

TEST(MakeCoordinatorClient, EmptyAddress_IsInvalid) {
  EXPECT_TRUE(absl::IsInvalidArgument(MakeCoordinatorClient("").status()));
}

}  // namespace
}  // namespace optshard
