// The coordinator's server and the members' client against each other, over loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/errors.h"
#include "common/incarnation.h"
#include "common/membership/coordinator_client_rpc.h"
#include "common/membership/growth.h"
#include "common/membership/member_session_rpc.h"
#include "common/rpc/channel_rpc.h"
#include "tests/server/coordinator/coordinator_rpc_rig.h"
#include "tests/server/coordinator/join_requests.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using CoordinatorRpcTest = CoordinatorRpcRig;

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
  }
  const absl::StatusOr<std::vector<std::string>> owners =
      MakeCoordinatorClient(server_->address())
          .value()
          ->GetOwners("default", In(absl::Seconds(20)));
  ASSERT_TRUE(owners.ok()) << owners.status();
  EXPECT_THAT(*owners, ElementsAre("127.0.0.1:4000", "127.0.0.1:4001", "127.0.0.1:4002"));
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

OptimizerSpec GrownSpec(int world_size, int64_t rows) {
  OptimizerSpec spec = TestJoin(0, world_size).spec;
  std::vector<GroupSpec> groups = spec.space.groups();
  ParameterSpec added;
  added.name = "head.weight";
  added.shape = {rows};
  groups.push_back({{added}, 1});
  spec.space = ParameterSpace(std::move(groups));
  spec.rules.push_back({"sgd"});
  return spec;
}

// What each of the members is answered.
std::vector<absl::StatusOr<GrowthAnswer>> ProposeOnAll(
    const std::vector<MemberSession*>& sessions, const std::vector<GrowthProposal>& proposals) {
  std::vector<absl::StatusOr<GrowthAnswer>> answers(sessions.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < sessions.size(); ++i) {
    threads.emplace_back([&, i] {
      answers[i] =
          sessions[i]->ProposeGrowth(proposals[i], Clock::Monotonic().Now() + absl::Seconds(20));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return answers;
}

TEST_F(CoordinatorRpcTest, ParamGroupsProposedByAll_AreComparedAndCommitted) {
  Start(2);
  std::vector<Member> members = JoinAll();
  const std::vector<MemberSession*> sessions = {members[0].session.get(), members[1].session.get()};
  GrowthProposal proposal;
  proposal.number = 1;
  proposal.spec = GrownSpec(2, 3);
  GrowthProposal other = proposal;
  other.spec = GrownSpec(2, 4);
  for (const auto& answer : ProposeOnAll(sessions, {proposal, other})) {
    ASSERT_EQ(answer.status(), absl::OkStatus());
    EXPECT_EQ(answer->verdict, GrowthVerdict::kRefused);
    EXPECT_TRUE(errors::IsRanksDisagree(answer->failure)) << answer->failure;
    EXPECT_THAT(std::string(answer->failure.message()), HasSubstr("[4]"));
  }
  proposal.number = 2;
  for (const GrowthPhase phase : {GrowthPhase::kCompare, GrowthPhase::kCommit}) {
    proposal.phase = phase;
    for (const auto& answer : ProposeOnAll(sessions, {proposal, proposal})) {
      ASSERT_EQ(answer.status(), absl::OkStatus());
      EXPECT_EQ(answer->verdict, GrowthVerdict::kAgreed);
      EXPECT_EQ(answer->generation, 2u);
    }
  }
  // Its calls are of the next generation now.
  EXPECT_EQ(sessions[0]->rendezvous().Put("k", "v"), absl::OkStatus());
  const absl::StatusOr<JobStatus> status =
      MakeCoordinatorClient(server_->address()).value()->GetStatus(In(absl::Seconds(20)));
  ASSERT_EQ(status.status(), absl::OkStatus());
  EXPECT_EQ(status->groups[0].generation, 2u);
  EXPECT_EQ(status->groups[0].parameter_count, 3);
}

// The period of their heartbeats is longer than anybody waits.
TEST_F(CoordinatorRpcTest, ParamGroupsProposedWhileARankSteps_AreRefusedAtOnce) {
  Start(2);
  std::vector<Member> members = JoinAll();
  members[1].session->SetProgress({0, StepOutcome::kInStep});
  GrowthProposal proposal;
  proposal.number = 1;
  proposal.spec = GrownSpec(2, 3);
  proposal.patience = absl::Hours(100000);
  const absl::StatusOr<GrowthAnswer> answer =
      members[0].session->ProposeGrowth(proposal, Clock::Monotonic().Now() + absl::Seconds(30));
  ASSERT_EQ(answer.status(), absl::OkStatus());
  EXPECT_EQ(answer->verdict, GrowthVerdict::kRefused);
  EXPECT_TRUE(answer->others_step);
  EXPECT_EQ(errors::RanksOf(answer->failure), std::vector<Rank>({1}));
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
  forgotten.session =
      StartMemberSession(server_->address(), MakeChannel(server_->address()),
                         {"optshard", "default", 0, reply.incarnation}, reply, TestJoin(0, 1).spec);
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

TEST_F(CoordinatorRpcTest, GetStatusOfManyRanks_IsPutTogetherOfItsPages) {
  Start(250);
  for (Rank rank = 0; rank < 250; ++rank) {
    ASSERT_TRUE(server_->coordinator().Join(TestJoin(rank, 250)).ok());
  }
  const auto client = MakeCoordinatorClient(server_->address()).value();
  const absl::StatusOr<JobStatus> status = client->GetStatus(In(absl::Seconds(20)));
  ASSERT_TRUE(status.ok()) << status.status();
  ASSERT_EQ(status->groups.size(), 1u);
  ASSERT_EQ(status->groups[0].members.size(), 250u);
  EXPECT_EQ(status->groups[0].members[249].pid, 349);
}

TEST(MakeCoordinatorClient, EmptyAddress_IsInvalid) {
  EXPECT_TRUE(absl::IsInvalidArgument(MakeCoordinatorClient("").status()));
}

}  // namespace
}  // namespace optshard
