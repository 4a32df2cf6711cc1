// Ranks that are killed, stopped or suspected: who is named and when, what a pause of the whole
// machine changes, and whether the step is torn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/errors.h"
#include "server/coordinator/coordinator.h"
#include "tests/server/coordinator/job_on_fake_clock.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Job = JobOnFakeClock;

TEST(CoordinatorLoss, Killed_TheOthersAreToldWithinTheGrace) {
  Job job(3);
  job.JoinAll();
  job.Kill(1);
  job.Pass(absl::Milliseconds(200), {0, 2});
  EXPECT_TRUE(job.Failure(0).ok());
  job.Pass(absl::Milliseconds(100), {0, 2});
  for (Rank rank : {0, 2}) {
    EXPECT_TRUE(errors::IsPeerLost(job.Failure(rank)));
    EXPECT_THAT(errors::RanksOf(job.Failure(rank)), ElementsAre(1));
    EXPECT_THAT(job.Failure(rank).ToString(), HasSubstr("pid 101"));
  }
  EXPECT_EQ(job.Group().state, GroupState::kFailed);
  EXPECT_EQ(job.Group().members[1].state, MemberState::kLost);
}

TEST(CoordinatorLoss, StreamResumedWithinTheGrace_NobodyIsLost) {
  Job job(2);
  job.JoinAll();
  job.Kill(1);
  job.Pass(absl::Milliseconds(200), {0, 1});
  const WatchId resumed = job.coordinator_->OpenWatch(job.callers_[1], [] {}).value();
  job.Pass(absl::Seconds(2), {0, 1});
  EXPECT_TRUE(job.Failure(0).ok());
  // The end of the stream that was replaced means nothing; the old one is told so.
  job.coordinator_->CloseWatch(job.callers_[1], job.watches_[1]);
  EXPECT_TRUE(
      absl::IsAborted(job.coordinator_->ReadEvents(job.callers_[1], job.watches_[1], 0).status()));
  job.Pass(absl::Seconds(2), {0, 1});
  EXPECT_TRUE(job.Failure(0).ok());
  EXPECT_TRUE(job.coordinator_->ReadEvents(job.callers_[1], resumed, 0).ok());
}

TEST(CoordinatorLoss, Stopped_IsNamedAtItsLeasesEnd) {
  Job job(3);
  job.JoinAll();
  job.Pass(absl::Seconds(4), {0, 2});
  EXPECT_TRUE(job.Failure(0).ok());
  job.Pass(absl::Seconds(1), {0, 2});
  EXPECT_THAT(errors::RanksOf(job.Failure(0)), ElementsAre(1));
  EXPECT_THAT(errors::RanksOf(job.Failure(2)), ElementsAre(1));
  // Continued after all, it learns that it was given up.
  const absl::StatusOr<Coordinator::Answer> news = job.Beat(1);
  ASSERT_TRUE(news.ok());
  EXPECT_THAT(errors::RanksOf(news->failure), ElementsAre(1));
}

TEST(CoordinatorLoss, WhileForming_FailsTheOthersAtOnce) {
  Job job(3);
  ASSERT_TRUE(job.Join(0).ok());
  ASSERT_TRUE(job.Join(1).ok());
  job.Kill(0);
  job.Pass(absl::Milliseconds(300), {1});
  EXPECT_THAT(errors::RanksOf(job.Failure(1)), ElementsAre(0));
}

TEST(CoordinatorPause, LongerThanTheLease_KillsNobody) {
  Job job(2);
  job.JoinAll();
  job.Pass(absl::Seconds(1), {0, 1});
  job.clock_.Advance(absl::Seconds(7));
  job.coordinator_->Tick();
  job.Pass(absl::Seconds(10), {0, 1});
  EXPECT_TRUE(job.Failure(0).ok()) << job.Failure(0);
  EXPECT_EQ(job.Group().state, GroupState::kActive);
}

// A call may come before the late tick does.
TEST(CoordinatorPause, CallIsTheFirstThingAfterIt_KillsNobody) {
  Job job(2);
  job.JoinAll();
  job.clock_.Advance(absl::Seconds(7));
  ASSERT_TRUE(job.Beat(0).ok());
  job.coordinator_->Tick();
  job.Pass(absl::Seconds(10), {0, 1});
  EXPECT_TRUE(job.Failure(0).ok()) << job.Failure(0);
}

TEST(CoordinatorPause, RankThatDiedMeanwhile_IsNamedAfterALeaseOfRunning) {
  Job job(2);
  job.JoinAll();
  job.Pass(absl::Seconds(2), {0});  // rank 1 is silent already
  job.clock_.Advance(absl::Hours(1));
  job.coordinator_->Tick();
  job.Pass(absl::Milliseconds(2800), {0});
  EXPECT_TRUE(job.Failure(0).ok()) << job.Failure(0);
  job.Pass(absl::Milliseconds(200), {0});
  EXPECT_THAT(errors::RanksOf(job.Failure(0)), ElementsAre(1));
  EXPECT_THAT(job.Failure(0).ToString(), HasSubstr("not heard from it for 5s"));
}

TEST(CoordinatorPause, StreamsThatItCost_MayBeResumedWithinALease) {
  Job job(2);
  job.JoinAll();
  job.clock_.Advance(absl::Seconds(30));
  job.Kill(0);
  job.Kill(1);
  job.Pass(absl::Milliseconds(600), {0, 1});
  for (Rank rank : {0, 1}) {
    job.watches_[rank] = job.coordinator_->OpenWatch(job.callers_[rank], [] {}).value();
  }
  job.Pass(absl::Seconds(10), {0, 1});
  EXPECT_TRUE(job.Failure(0).ok()) << job.Failure(0);
  // From then on a kill is noticed as soon as ever.
  job.Kill(1);
  job.Pass(absl::Milliseconds(300), {0});
  EXPECT_THAT(errors::RanksOf(job.Failure(0)), ElementsAre(1));
}

TEST(CoordinatorPause, WhileRanksGather_DoesNotCountAsTheirDelay) {
  Job job(2);
  ASSERT_TRUE(job.Join(0).ok());
  job.clock_.Advance(absl::Hours(1));
  job.coordinator_->Tick();
  job.Pass(absl::Seconds(1), {0});
  EXPECT_TRUE(job.Join(1).ok());
  EXPECT_EQ(job.Group().state, GroupState::kActive);
}

TEST(CoordinatorAttribution, CascadeAfterAKill_NamesTheDeadNotTheInnocent) {
  Job job(3);
  job.JoinAll();
  // Rank 2 sees rank 0 close its connection before anybody notices that rank 1 is dead.
  ASSERT_TRUE(job.Report(2, 0).ok());
  job.Pass(absl::Milliseconds(100), {0, 2});
  job.Kill(1);
  ASSERT_TRUE(job.Report(0, 1).ok());
  job.Pass(absl::Milliseconds(400), {0, 2});
  EXPECT_THAT(errors::RanksOf(job.Failure(0)), ElementsAre(1));
  EXPECT_THAT(errors::RanksOf(job.Failure(2)), ElementsAre(1));
}

TEST(CoordinatorAttribution, StoppedProcess_WaitsForItsLeaseAndNamesIt) {
  Job job(3);
  job.JoinAll();
  // Rank 1 is stopped; rank 2 suspects rank 0, which itself waits for rank 1.
  ASSERT_TRUE(job.Report(2, 0).ok());
  job.Pass(absl::Seconds(4), {0, 2});
  EXPECT_TRUE(job.Failure(2).ok());
  job.Pass(absl::Seconds(1), {0, 2});
  EXPECT_THAT(errors::RanksOf(job.Failure(2)), ElementsAre(1));
}

TEST(CoordinatorAttribution, AllAlive_NamesTheSuspectAfterTheGrace) {
  Job job(3);
  job.JoinAll();
  ASSERT_TRUE(job.Report(0, 1).ok());
  job.Pass(absl::Milliseconds(400), {0, 1, 2});
  EXPECT_TRUE(job.Failure(0).ok());
  job.Pass(absl::Milliseconds(100), {0, 1, 2});
  EXPECT_THAT(errors::RanksOf(job.Failure(2)), ElementsAre(1));
  EXPECT_THAT(job.Failure(2).ToString(), HasSubstr("although both processes are alive"));
}

TEST(CoordinatorAttribution, ReportAfterTheFailure_IsAnsweredWithIt) {
  Job job(2);
  job.JoinAll();
  job.Kill(1);
  job.Pass(absl::Milliseconds(300), {0});
  const absl::StatusOr<Coordinator::Answer> news = job.coordinator_->ReportFailure(
      job.callers_[0], {3, StepOutcome::kTorn}, 1, absl::UnavailableError("reset"));
  ASSERT_TRUE(news.ok());
  EXPECT_EQ(news->failure, job.Failure(0));
  EXPECT_TRUE(job.Group().torn);
}

TEST(CoordinatorAttribution, SenselessReport_IsInvalid) {
  Job job(2);
  job.JoinAll();
  EXPECT_TRUE(absl::IsInvalidArgument(job.Report(0, 2)));
  EXPECT_TRUE(absl::IsInvalidArgument(
      job.coordinator_->ReportFailure(job.callers_[0], {}, 1, absl::OkStatus()).status()));
  EXPECT_TRUE(job.Failure(0).ok());
}

TEST(CoordinatorTorn, AllNotAppliedAtTheSameStep_IsNotTorn) {
  Job job(3);
  job.JoinAll();
  job.progress_[1] = {2, StepOutcome::kInStep};  // what its last heartbeat said
  job.Pass(absl::Milliseconds(100), {0, 1, 2});
  job.Kill(1);
  ASSERT_TRUE(job.Report(0, 1, {5, StepOutcome::kNotApplied}).ok());
  ASSERT_TRUE(job.Report(2, 1, {5, StepOutcome::kNotApplied}).ok());
  job.progress_[0] = job.progress_[2] = {5, StepOutcome::kNotApplied};
  job.Pass(absl::Milliseconds(300), {0, 2});
  EXPECT_EQ(job.Group().state, GroupState::kFailed);
  EXPECT_FALSE(job.Group().torn);
}

TEST(CoordinatorTorn, DifferentFinishedSteps_AreTorn) {
  Job job(3);
  job.JoinAll();
  job.Kill(1);
  ASSERT_TRUE(job.Report(0, 1, {5, StepOutcome::kNotApplied}).ok());
  job.Pass(absl::Milliseconds(300), {2});
  job.progress_[2] = {6, StepOutcome::kIdle};
  job.Pass(absl::Milliseconds(100), {2});
  EXPECT_TRUE(job.Group().torn);
}

// Calls overtake one another, and what a rank has said last counts.
TEST(CoordinatorHeartbeat, SentBeforeTheRankLeft_ChangesNothing) {
  Job job(2);
  job.JoinAll();
  ASSERT_TRUE(job.coordinator_->Leave(job.callers_[1], {4, StepOutcome::kIdle}).ok());
  job.progress_[0] = {3, StepOutcome::kInStep};
  job.progress_[1] = {3, StepOutcome::kIdle};
  job.Pass(absl::Milliseconds(100), {1, 0});
  EXPECT_TRUE(job.Failure(0).ok()) << job.Failure(0);
  EXPECT_EQ(job.Group().members[1].progress.finished, 4);
}

TEST(CoordinatorHeartbeat, SentBeforeAReport_ChangesNothing) {
  Job job(2);
  job.JoinAll();
  ASSERT_TRUE(job.Report(0, 1, {4, StepOutcome::kNotApplied}).ok());
  job.progress_[0] = {4, StepOutcome::kInStep};
  job.Pass(absl::Milliseconds(100), {0});
  EXPECT_EQ(job.Group().members[0].progress.outcome, StepOutcome::kNotApplied);
}

TEST(CoordinatorTorn, InDoubt_IsTorn) {
  Job job(2);
  job.JoinAll();
  job.Kill(1);
  ASSERT_TRUE(job.Report(0, 1, {5, StepOutcome::kInDoubt}).ok());
  job.Pass(absl::Milliseconds(300), {0});
  EXPECT_TRUE(job.Group().torn);
}

}  // namespace
}  // namespace optshard
