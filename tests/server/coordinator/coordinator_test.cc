#include "server/coordinator/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/incarnation.h"
#include "common/log.h"
#include "tests/server/coordinator/job_on_fake_clock.h"
#include "tests/server/coordinator/join_requests.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Job = JobOnFakeClock;

TEST(CoordinatorOptions, Senseless_AreRefused) {
  Coordinator::Options options;
  options.group.world_size = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(Coordinator::Create(options).status()));
  options.group.world_size = 1;
  options.group.job = "";
  EXPECT_TRUE(absl::IsInvalidArgument(Coordinator::Create(options).status()));
  options.group.job = "j";
  options.group.liveness.lease = absl::ZeroDuration();
  EXPECT_TRUE(absl::IsInvalidArgument(Coordinator::Create(options).status()));
  options.group.liveness.lease = absl::Seconds(1);
  options.group.resume_grace = absl::Seconds(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(Coordinator::Create(options).status()));
  options.group.resume_grace = absl::ZeroDuration();
  options.longest_step = absl::ZeroDuration();
  EXPECT_TRUE(absl::IsInvalidArgument(Coordinator::Create(options).status()));
}

TEST(CoordinatorJoin, AllRanksIn_AllGetTheSamePlan) {
  Job job(2);
  ASSERT_TRUE(job.Join(0).ok());
  EXPECT_EQ(job.Group().state, GroupState::kForming);
  EXPECT_TRUE(job.Events(0).empty());
  ASSERT_TRUE(job.Join(1).ok());
  EXPECT_EQ(job.wakes_[0], 1);
  for (Rank rank : {0, 1}) {
    const std::vector<MemberEvent> events = job.Events(rank);
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].sequence, 1u);
    EXPECT_EQ(events[0].kind, MemberEvent::Kind::kPlanReady);
    EXPECT_EQ(events[0].ready->plan.generation, 1u);
    EXPECT_EQ(events[0].ready->plan.world_size, 2);
    EXPECT_THAT(events[0].ready->plan.tree.node_groups, ElementsAre(ElementsAre(0, 1)));
    EXPECT_TRUE(
        CheckPartition(TestSpace(), events[0].ready->plan.partition, PartitionPolicy::kGreedy)
            .ok());
    EXPECT_EQ(events[0].ready, job.Events(0)[0].ready) << "one plan, not one for each rank";
  }
  EXPECT_EQ(job.Group().state, GroupState::kActive);
}

TEST(CoordinatorJoin, ReadAfterASequence_GivesOnlyLaterEvents) {
  Job job(1);
  job.JoinAll();
  const WatchEvents after =
      job.coordinator_->ReadEvents(job.callers_[0], job.watches_[0], 1).value();
  EXPECT_TRUE(after.events.empty());
  EXPECT_FALSE(after.last);
}

TEST(CoordinatorJoin, OnlyDigests_AskOneRankForItsSpecAndBeginNoGroup) {
  Job job(2);
  const auto answer = [&job](Rank rank, const char* optimizer) {
    return job.coordinator_->Join(WithoutSpec(TestJoin(rank, 2, optimizer)))->answer;
  };
  EXPECT_EQ(answer(0, "default"), JoinAnswer::kSendSpec);
  EXPECT_EQ(answer(1, "default"), JoinAnswer::kAskAgain);
  EXPECT_EQ(answer(1, "other"), JoinAnswer::kSendSpec);
  EXPECT_TRUE(job.coordinator_->GetStatus("").groups.empty());
  EXPECT_TRUE(absl::IsNotFound(job.coordinator_->GetOwners("default", 0).status()));
  EXPECT_FALSE(job.coordinator_->Done()) << "with exit_when_done it would end before anybody joins";

  ASSERT_TRUE(job.Join(0).ok());
  EXPECT_EQ(answer(1, "default"), JoinAnswer::kAdmitted);
}

TEST(CoordinatorJoin, Reply_SaysLeasePeriodAndHost) {
  Job job(2, 0);
  const JoinReply reply = job.coordinator_->Join(TestJoin(1, 2)).value();
  EXPECT_EQ(reply.incarnation, FirstIncarnation(1));
  EXPECT_EQ(reply.lease, absl::Seconds(5));
  EXPECT_EQ(reply.heartbeat_period, absl::Seconds(1));
  EXPECT_EQ(reply.host_rank, 0);
}

TEST(CoordinatorJoin, ReplyInALargeWorld_HasAPeriodAndALeaseThatGrowWithIt) {
  Job job(10'000);
  const JoinReply reply = job.coordinator_->Join(TestJoin(1, 10'000)).value();
  EXPECT_EQ(reply.heartbeat_period, absl::Seconds(10));
  EXPECT_EQ(reply.lease, absl::Seconds(50));
}

TEST(CoordinatorJoin, SameRequestAgain_GetsTheFirstAnswer) {
  Job job(2);
  ASSERT_TRUE(job.Join(0).ok());
  const absl::StatusOr<JoinReply> again = job.coordinator_->Join(TestJoin(0, 2));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->incarnation, job.callers_[0].member.incarnation);
}

TEST(CoordinatorJoin, RankTakenTwice_NamesTheHolderAndChangesNothing) {
  Job job(2);
  ASSERT_TRUE(job.Join(0).ok());
  JoinRequest second = TestJoin(0, 2);
  second.request_id = "another";
  second.pid = 999;
  const absl::Status status = job.coordinator_->Join(second).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status));
  EXPECT_THAT(status.ToString(),
              AllOf(HasSubstr("pid 100"), HasSubstr("127.0.0.1:4000"), HasSubstr("pid 999")));
  ASSERT_TRUE(job.Join(1).ok());
  EXPECT_EQ(job.Group().state, GroupState::kActive);
  EXPECT_TRUE(absl::IsAlreadyExists(job.coordinator_->Join(second).status()));
  EXPECT_EQ(job.Group().state, GroupState::kActive);
}

TEST(CoordinatorJoin, WrongWorldSize_TheOthersGoOnWaiting) {
  Job job(2);
  ASSERT_TRUE(job.Join(0).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(job.coordinator_->Join(TestJoin(1, 3)).status()));
  EXPECT_TRUE(job.Failure(0).ok());
  EXPECT_TRUE(job.Join(1).ok());
  EXPECT_EQ(job.Group().state, GroupState::kActive);
}

TEST(CoordinatorJoin, OtherParameters_EveryRankGetsTheFirstDifference) {
  Job job(3);
  ASSERT_TRUE(job.Join(0).ok());
  JoinRequest other = TestJoin(1, 3);
  other.spec.space = TestSpace(5);
  const absl::Status status = job.coordinator_->Join(other).status();
  EXPECT_TRUE(errors::IsRanksDisagree(status));
  EXPECT_THAT(status.ToString(), AllOf(HasSubstr("[4, 8]"), HasSubstr("[5, 8]")));
  EXPECT_EQ(job.Failure(0), status);                          // by event
  EXPECT_EQ(job.coordinator_->Join(other).status(), status);  // its retry
  EXPECT_EQ(job.Join(2), status);                             // who comes later
}

TEST(CoordinatorJoin, RankNeverComes_AllJoinedAreToldWho) {
  Job job(4);
  ASSERT_TRUE(job.Join(1).ok());
  job.Pass(absl::Seconds(30), {1});
  ASSERT_TRUE(job.Join(3).ok());
  job.Pass(absl::Seconds(29), {1, 3});
  EXPECT_TRUE(job.Failure(1).ok());
  job.Pass(absl::Seconds(1), {1, 3});
  for (Rank rank : {1, 3}) {
    EXPECT_TRUE(errors::IsPeersTimedOut(job.Failure(rank)));
    EXPECT_THAT(errors::RanksOf(job.Failure(rank)), ElementsAre(0, 2));
  }
  const absl::Status late = job.Join(0);
  EXPECT_TRUE(absl::IsFailedPrecondition(late));
  EXPECT_THAT(late.ToString(), HasSubstr("2 of 4 ranks joined"));
}

TEST(CoordinatorJoin, LeavesWhileForming_RankIsFreeAgainWithAHigherIncarnation) {
  Job job(2);
  ASSERT_TRUE(job.Join(0).ok());
  ASSERT_TRUE(job.coordinator_->Leave(job.callers_[0], {}).ok());
  EXPECT_TRUE(job.coordinator_->Done());
  JoinRequest successor = TestJoin(0, 2);
  successor.request_id = "successor";
  successor.spec.rules[0].name = "sgd";  // nobody is in whom it would have to agree with
  EXPECT_EQ(job.coordinator_->Join(successor)->incarnation, FirstIncarnation(1) + 1);
  EXPECT_TRUE(errors::IsStaleIncarnation(job.Beat(0).status()));
}

TEST(CoordinatorJoin, RetryAfterItLeftWhileForming_GetsTheFirstAnswerAndAdmitsNobody) {
  Job job(2);
  ASSERT_TRUE(job.Join(0).ok());
  ASSERT_TRUE(job.coordinator_->Leave(job.callers_[0], {}).ok());
  EXPECT_EQ(job.coordinator_->Join(TestJoin(0, 2))->incarnation,
            job.callers_[0].member.incarnation);
  EXPECT_EQ(job.Group().members[0].state, MemberState::kMissing);
}

TEST(CoordinatorLeave, RepeatedWhileForming_IsOkAlsoOnceTheRankIsTakenAgain) {
  Job job(2);
  ASSERT_TRUE(job.Join(0).ok());
  const Caller left = job.callers_[0];
  ASSERT_TRUE(job.coordinator_->Leave(left, {}).ok());
  EXPECT_TRUE(job.coordinator_->Leave(left, {}).ok());
  JoinRequest successor = TestJoin(0, 2);
  successor.request_id = "successor";
  ASSERT_TRUE(job.Join(successor).ok());
  EXPECT_TRUE(job.coordinator_->Leave(left, {}).ok());
  EXPECT_EQ(job.Group().members[0].state, MemberState::kJoined);
}

TEST(CoordinatorJoin, OptimizersOfOtherNames_AreGroupsOfTheirOwn) {
  Job job(2);
  job.JoinAll();
  ASSERT_TRUE(job.coordinator_->Join(TestJoin(0, 2, "discriminator")).ok());
  const JobStatus status = job.coordinator_->GetStatus("");
  ASSERT_EQ(status.groups.size(), 2u);
  EXPECT_EQ(status.groups[0].state, GroupState::kActive);
  EXPECT_EQ(status.groups[1].state, GroupState::kForming);
}

TEST(CoordinatorLeave, AllLeave_FinishesTheGroup) {
  Job job(2);
  job.JoinAll();
  ASSERT_TRUE(job.coordinator_->Leave(job.callers_[0], {9, StepOutcome::kIdle}).ok());
  job.Kill(0);  // its stream ends with it
  job.Pass(absl::Seconds(10), {1});
  EXPECT_TRUE(job.Failure(1).ok());
  EXPECT_FALSE(job.coordinator_->Done());
  ASSERT_TRUE(job.coordinator_->Leave(job.callers_[1], {9, StepOutcome::kIdle}).ok());
  ASSERT_TRUE(job.coordinator_->Leave(job.callers_[1], {9, StepOutcome::kIdle}).ok());
  EXPECT_EQ(job.Group().state, GroupState::kFinished);
  EXPECT_TRUE(job.coordinator_->Done());
  JoinRequest late = TestJoin(0, 2);
  late.request_id = "late";
  EXPECT_TRUE(absl::IsFailedPrecondition(job.coordinator_->Join(late).status()));
}

TEST(CoordinatorLeave, OthersInAStepItNeverDoes_AreToldThatItLeft) {
  Job job(2);
  job.JoinAll();
  ASSERT_TRUE(job.coordinator_->Leave(job.callers_[1], {4, StepOutcome::kIdle}).ok());
  job.progress_[0] = {3, StepOutcome::kInStep};  // finishing the step that rank 1 has finished
  job.Pass(absl::Milliseconds(100), {0});
  EXPECT_TRUE(job.Failure(0).ok());
  job.progress_[0] = {4, StepOutcome::kInStep};
  job.Pass(absl::Milliseconds(100), {0});
  EXPECT_THAT(errors::RanksOf(job.Failure(0)), ElementsAre(1));
  EXPECT_THAT(job.Failure(0).ToString(), HasSubstr("left the job after step 4"));
}

TEST(CoordinatorLeave, AfterASkippedStep_OthersMaySkipItToo) {
  Job job(2);
  job.JoinAll();
  ASSERT_TRUE(job.coordinator_->Leave(job.callers_[1], {3, StepOutcome::kIdle, 1}).ok());
  job.progress_[0] = {3, StepOutcome::kInStep, 0};
  job.Pass(absl::Milliseconds(100), {0});
  EXPECT_TRUE(job.Failure(0).ok()) << job.Failure(0);
  job.progress_[0] = {3, StepOutcome::kInStep, 1};
  job.Pass(absl::Milliseconds(100), {0});
  EXPECT_THAT(errors::RanksOf(job.Failure(0)), ElementsAre(1));
}

TEST(CoordinatorLeave, SuspectHasLeft_IsToBlame) {
  Job job(2);
  job.JoinAll();
  ASSERT_TRUE(job.coordinator_->Leave(job.callers_[1], {4, StepOutcome::kIdle}).ok());
  ASSERT_TRUE(job.Report(0, 1).ok());
  EXPECT_THAT(job.Failure(0).ToString(), HasSubstr("left the job after step 4"));
}

// A coordinator that was started anew has ranks call that it does not know.
TEST(CoordinatorCallers, OfAnOptimizerThatNobodyHasJoined_TheLogSaysSoOnce) {
  Job job(2);
  job.JoinAll();
  Caller other = job.callers_[0];
  other.member.optimizer = "critic";
  Caller former = job.callers_[1];
  former.member.incarnation = 7;
  ASSERT_TRUE(SetLogLevel("warning").ok());
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(errors::IsStaleIncarnation(job.coordinator_->Heartbeat(other, {}).status()));
    EXPECT_TRUE(errors::IsStaleIncarnation(job.coordinator_->Heartbeat(former, {}).status()));
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("the rank trains with optimizer \"critic\""));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

TEST(CoordinatorCallers, StaleIncarnationOrGeneration_ChangesNothing) {
  Job job(2);
  job.JoinAll();
  Caller old = job.callers_[0];
  old.member.incarnation = 7;
  EXPECT_TRUE(errors::IsStaleIncarnation(job.coordinator_->Heartbeat(old, {}).status()));
  EXPECT_TRUE(errors::IsStaleIncarnation(job.coordinator_->Leave(old, {})));
  EXPECT_TRUE(errors::IsStaleIncarnation(job.coordinator_->OpenWatch(old, [] {}).status()));
  EXPECT_TRUE(errors::IsStaleIncarnation(job.coordinator_->PutRendezvous(old, "k", "v")));
  old = job.callers_[0];
  old.generation = 4;
  EXPECT_TRUE(errors::IsStaleGeneration(job.coordinator_->PutRendezvous(old, "k", "v")));
  EXPECT_TRUE(errors::IsStaleGeneration(
      job.coordinator_->ReportFailure(old, {}, 1, absl::UnavailableError("x")).status()));
  EXPECT_EQ(job.Group().state, GroupState::kActive);
  old = job.callers_[0];
  old.member.optimizer = "unknown";
  EXPECT_TRUE(errors::IsStaleIncarnation(job.coordinator_->Heartbeat(old, {}).status()));
  old = job.callers_[0];
  old.member.job = "unknown";
  EXPECT_TRUE(absl::IsInvalidArgument(job.coordinator_->Heartbeat(old, {}).status()));
  old = job.callers_[0];
  old.member.rank = 5;
  EXPECT_TRUE(absl::IsInvalidArgument(job.coordinator_->Heartbeat(old, {}).status()));
}

TEST(CoordinatorCallers, OtherGeneration_IsStaleInEveryCall) {
  Job job(2);
  job.JoinAll();
  Caller other = job.callers_[0];
  other.generation = 4;
  EXPECT_TRUE(errors::IsStaleGeneration(job.coordinator_->OpenWatch(other, [] {}).status()));
  EXPECT_TRUE(errors::IsStaleGeneration(job.coordinator_->Heartbeat(other, {}).status()));
  EXPECT_TRUE(errors::IsStaleGeneration(job.coordinator_->Leave(other, {})));
  EXPECT_EQ(job.Group().members[0].state, MemberState::kActive);
  // Who has not heard of the plan yet is known by its incarnation.
  other.generation = 0;
  EXPECT_TRUE(job.coordinator_->Heartbeat(other, {}).ok());
}

TEST(CoordinatorStartedAnew, ProcessesOfTheFormerRun_AreNotTakenForTheNewOnes) {
  Job job(2);
  job.JoinAll();
  const Caller former = job.callers_[0];
  job.StartCoordinator();
  job.JoinAll();
  EXPECT_GT(job.callers_[0].member.incarnation, former.member.incarnation);
  EXPECT_TRUE(errors::IsStaleIncarnation(job.coordinator_->Heartbeat(former, {}).status()));
  EXPECT_TRUE(errors::IsStaleIncarnation(job.coordinator_->OpenWatch(former, [] {}).status()));
  EXPECT_TRUE(errors::IsStaleIncarnation(
      job.coordinator_->ReportFailure(former, {}, 1, absl::UnavailableError("reset")).status()));
  EXPECT_TRUE(errors::IsStaleIncarnation(job.coordinator_->PutRendezvous(former, "k", "v")));
  EXPECT_TRUE(errors::IsStaleIncarnation(job.coordinator_->Leave(former, {})));
  job.Pass(absl::Seconds(2), {0, 1});
  EXPECT_EQ(job.Group().members[0].state, MemberState::kActive);
  EXPECT_TRUE(job.Failure(1).ok()) << job.Failure(1);
}

TEST(CoordinatorStartedAnew, NoEpochIsGiven_TakesTheTime) {
  Coordinator::Options options;
  const Incarnation incarnation =
      Coordinator::Create(options).value()->Join(TestJoin(0, 1))->incarnation;
  EXPECT_EQ(CountOf(incarnation), 1u);
  // Some time after 2020.
  EXPECT_GT(EpochOf(incarnation), 1'577'836'800'000u);
}

TEST(CoordinatorRendezvous, FailureOfTheGroup_EndsAWait) {
  Job job(2);
  job.JoinAll();
  absl::optional<absl::StatusOr<std::string>> answer;
  job.coordinator_->GetRendezvous(
      job.callers_[0], "k", absl::Seconds(10),
      [&answer](absl::StatusOr<std::string> value) { answer = std::move(value); });
  EXPECT_FALSE(answer.has_value());
  job.Kill(1);
  job.Pass(absl::Milliseconds(300), {0});
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(errors::IsPeerLost(answer->status()));
}

TEST(CoordinatorRendezvous, WaitOfBeforeThePlan_EndsWithThePlan) {
  Job job(2);
  ASSERT_TRUE(job.Join(0).ok());
  absl::optional<absl::StatusOr<std::string>> answer;
  job.coordinator_->GetRendezvous(
      job.callers_[0], "k", absl::Seconds(10),
      [&answer](absl::StatusOr<std::string> value) { answer = std::move(value); });
  ASSERT_TRUE(job.Join(1).ok());
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(errors::IsStaleGeneration(answer->status())) << answer->status();
}

TEST(CoordinatorShutdown, StreamsWaitsAndCalls_EndUnavailable) {
  Job job(2);
  job.JoinAll();
  absl::Status answer;
  job.coordinator_->GetRendezvous(
      job.callers_[0], "k", absl::Seconds(10),
      [&answer](const absl::StatusOr<std::string>& value) { answer = value.status(); });
  const int woken = job.wakes_[0];
  job.coordinator_->Shutdown();
  EXPECT_EQ(job.wakes_[0], woken + 1);
  EXPECT_TRUE(absl::IsUnavailable(answer));
  EXPECT_TRUE(absl::IsUnavailable(
      job.coordinator_->ReadEvents(job.callers_[0], job.watches_[0], 0).status()));
  EXPECT_TRUE(absl::IsUnavailable(job.Beat(0).status()));
  EXPECT_TRUE(absl::IsUnavailable(job.coordinator_->Join(TestJoin(0, 2)).status()));
  job.coordinator_->Shutdown();
}

TEST(CoordinatorStatus, Summaries_ReadWell) {
  Job job(2);
  EXPECT_EQ(Summary(job.coordinator_->GetStatus("")), "job optshard: nobody has joined yet");
  ASSERT_TRUE(job.Join(0).ok());
  EXPECT_EQ(Summary(job.Group()),
            "default forming: 1 of 2 ranks joined, waiting for rank 1; adam, greedy, 2 parameters, "
            "36 elements");
  ASSERT_TRUE(job.Join(1).ok());
  job.progress_[0] = {12, StepOutcome::kInStep};
  job.progress_[1] = {12, StepOutcome::kIdle};
  job.Pass(absl::Milliseconds(100), {0, 1});
  EXPECT_EQ(Summary(job.Group()),
            "default active: 2 ranks, step 12, generation 1; adam, greedy, 2 parameters, 36 "
            "elements");
  EXPECT_EQ(Summary(job.Group().members[0]),
            "rank 0 active: in step 13; pid 100 on node-a, incarnation 1.1, owner at "
            "127.0.0.1:4000, heard from 0.0 s ago");
  EXPECT_EQ(Summary(job.coordinator_->GetStatus("")), "job optshard: 1 optimizer (default active)");
  EXPECT_TRUE(job.coordinator_->GetStatus("other").groups.empty());
}

}  // namespace
}  // namespace optshard
