// A group that has failed forms again from ranks that bring their state back.
#include "tests/server/coordinator/group_resumes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/errors.h"
#include "tests/server/coordinator/join_requests.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(GroupResumes, FreshRanks_BeginAfterStepZero) {
  job_.JoinAll();
  ExpectActive(1, 0);
}

TEST_F(GroupResumes, KilledAndStartedAgain_AllGoOnByTheNextPlan) {
  KillRankOneAndNotice();
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  EXPECT_EQ(job_.Group().state, GroupState::kForming);
  ASSERT_TRUE(Resume(0, Kept(12)).ok());
  ExpectActive(2, 12);
  EXPECT_EQ(job_.LifeCount(0), 2u);
  EXPECT_EQ(job_.LifeCount(1), 2u);
}

TEST_F(GroupResumes, BackBeforeItsDeathWasNoticed_ProvesTheDeath) {
  KillRankOne();
  const Life survivor = LifeOf(0);
  const int woken = job_.wakes_[0];
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  EXPECT_EQ(job_.wakes_[0], woken + 1);
  const std::vector<MemberEvent> events = EventsOf(survivor, 1);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(errors::IsPeerLost(events[0].failure));
  EXPECT_THAT(errors::RanksOf(events[0].failure), ElementsAre(1));
  EXPECT_THAT(events[0].failure.ToString(),
              HasSubstr("its shard server was started again (pid 101, now pid 201)"));
  ASSERT_TRUE(Resume(0, Kept(12)).ok());
  ExpectActive(2, 12);
}

TEST_F(GroupResumes, Survivor_IsToldOnceByEachWayItAsks) {
  KillRankOneAndNotice();
  const Life survivor = LifeOf(0);
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  // Others form already; the survivor's stream, heartbeat and report are still answered.
  job_.Pass(absl::Seconds(1), {0, 1});
  ASSERT_EQ(EventsOf(survivor).size(), 2u);
  const absl::Status failure = EventsOf(survivor)[1].failure;
  EXPECT_TRUE(errors::IsPeerLost(failure));
  EXPECT_EQ(job_.coordinator_->Heartbeat(survivor.caller, {})->failure, failure);
  EXPECT_EQ(job_.coordinator_
                ->ReportFailure(survivor.caller, {12, StepOutcome::kNotApplied}, 1,
                                absl::UnavailableError("reset"))
                ->failure,
            failure);
  EXPECT_EQ(job_.coordinator_->PutRendezvous(survivor.caller, "k", "v"), failure);
  // Also over a stream that it opens only now.
  const WatchId again = job_.coordinator_->OpenWatch(survivor.caller, [] {}).value();
  EXPECT_EQ(EventsOf({survivor.caller, again}, 1).size(), 1u);
  ASSERT_TRUE(Resume(0, Kept(12)).ok());
  ExpectActive(2, 12);
}

TEST_F(GroupResumes, RendezvousWaitOfTheFormerLife_EndsWithItsFailure) {
  KillRankOne();
  absl::Status answer;
  job_.coordinator_->GetRendezvous(
      job_.callers_[0], "k", absl::Seconds(10),
      [&answer](const absl::StatusOr<std::string>& value) { answer = value.status(); });
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  EXPECT_TRUE(errors::IsPeerLost(answer));
}

TEST_F(GroupResumes, FormerLivesCalls_ChangeNothingInTheNext) {
  KillRankOneAndNotice();
  const std::vector<Life> former = {LifeOf(0), LifeOf(1)};
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  ASSERT_TRUE(Resume(0, Kept(12)).ok());
  for (Caller& caller : job_.callers_) caller.generation = 2;
  for (const Life& life : former) {
    EXPECT_TRUE(job_.coordinator_->Heartbeat(life.caller, {99, StepOutcome::kTorn}).ok());
    EXPECT_TRUE(job_.coordinator_
                    ->ReportFailure(life.caller, {99, StepOutcome::kTorn}, 0,
                                    absl::UnavailableError("reset"))
                    .ok());
    EXPECT_FALSE(job_.coordinator_->PutRendezvous(life.caller, "k", "old").ok());
    EXPECT_TRUE(job_.coordinator_->Leave(life.caller, {}).ok());
    job_.coordinator_->CloseWatch(life.caller, life.watch);
  }
  // Nor do the leases that ran out there.
  job_.Pass(absl::Seconds(10), {0, 1});
  ExpectActive(2, 12);
  for (const MemberStatus& member : job_.Group().members) {
    EXPECT_EQ(member.state, MemberState::kActive);
    EXPECT_EQ(member.progress.finished, 12u);
  }
  EXPECT_TRUE(job_.coordinator_->PutRendezvous(job_.callers_[0], "k", "new").ok());
  // Plans of before are told apart, too.
  Caller old_plan = job_.callers_[0];
  old_plan.generation = 1;
  EXPECT_TRUE(errors::IsStaleGeneration(job_.coordinator_->PutRendezvous(old_plan, "k", "other")));
}

TEST_F(GroupResumes, SurvivorsFormerLifeRunsOut_WhileItsNextForms_TheNextGoesOn) {
  KillRankOneAndNotice();
  ASSERT_TRUE(Resume(0, Kept(12)).ok());  // its former session just ended, without Leave
  job_.Pass(absl::Seconds(20), {0});
  EXPECT_EQ(job_.Group().state, GroupState::kForming);
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  ExpectActive(2, 12);
}

TEST_F(GroupResumes, KilledAgainAndAgain_NumbersGrow) {
  KillRankOneAndNotice();
  const Life first = LifeOf(0);
  for (Generation generation = 2; generation < 5; ++generation) {
    const KeptState kept = Kept(10 + generation, StepOutcome::kIdle, generation - 1);
    ASSERT_TRUE(Resume(1, kept).ok());
    ASSERT_TRUE(Resume(0, kept).ok());
    ExpectActive(generation, 10 + generation);
    EXPECT_EQ(job_.LifeCount(1), generation);
    job_.Kill(1);
    job_.Pass(absl::Milliseconds(300), {0});
    EXPECT_TRUE(errors::IsPeerLost(job_.Failure(0)));
  }
  EXPECT_TRUE(errors::IsStaleIncarnation(job_.coordinator_->Heartbeat(first.caller, {}).status()));
  EXPECT_TRUE(errors::IsStaleIncarnation(
      job_.coordinator_->ReadEvents(first.caller, first.watch, 0).status()));
}

TEST_F(GroupResumes, AppliedByAllThoughInDoubt_GoesOnAfterIt) {
  KillRankOne();
  ASSERT_TRUE(job_.Report(0, 1, {12, StepOutcome::kApplied}).ok());
  ASSERT_TRUE(Resume(1, Kept(12, StepOutcome::kApplied)).ok());
  ASSERT_TRUE(Resume(0, Kept(13)).ok());
  ExpectActive(2, 13);
}

TEST_F(GroupResumes, RankNeverComesBack_TheNextJoinFormsAgain) {
  KillRankOneAndNotice();
  ASSERT_TRUE(Resume(0, Kept(12)).ok());
  job_.Pass(absl::Seconds(59), {0});
  EXPECT_TRUE(job_.Failure(0).ok());
  job_.Pass(absl::Seconds(1), {0});
  EXPECT_TRUE(errors::IsPeersTimedOut(job_.Failure(0)));
  EXPECT_THAT(errors::RanksOf(job_.Failure(0)), ElementsAre(1));
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  ASSERT_TRUE(Resume(0, Kept(12)).ok());
  ExpectActive(2, 12);
  EXPECT_EQ(job_.LifeCount(0), 3u);
  EXPECT_EQ(job_.LifeCount(1), 2u);
}

TEST_F(GroupResumes, KilledWhileFormingAndBackUnnoticed_TheOthersAreToldAndComeAgain) {
  KillRankOneAndNotice();
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  const Life killed = LifeOf(1);
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  EXPECT_TRUE(errors::IsPeerLost(job_.coordinator_->Heartbeat(killed.caller, {})->failure));
  ASSERT_TRUE(Resume(0, Kept(12)).ok());
  ExpectActive(2, 12);
  EXPECT_EQ(job_.LifeCount(1), 3u);
}

TEST_F(GroupResumes, CoordinatorThatWasStartedAgain_FormsTheGroup) {
  KillRankOneAndNotice();
  job_.StartCoordinator();
  ASSERT_TRUE(Resume(1, Kept(12, StepOutcome::kIdle, 4)).ok());
  job_.Kill(1);
  job_.Pass(absl::Milliseconds(300), {});
  ASSERT_EQ(job_.Group().state, GroupState::kFailed);
  ASSERT_TRUE(Resume(0, Kept(12, StepOutcome::kIdle, 4)).ok());
  ASSERT_TRUE(Resume(1, Kept(12, StepOutcome::kIdle, 4)).ok());
  ExpectActive(5, 12);
}

TEST_F(GroupResumes, Retry_GetsTheFirstAnswer) {
  KillRankOneAndNotice();
  const Incarnation former = job_.callers_[0].member.incarnation;
  const JoinRequest one = Successor(1, Kept(12));
  const Incarnation incarnation = job_.coordinator_->Join(one)->incarnation;
  EXPECT_EQ(job_.coordinator_->Join(one)->incarnation, incarnation);
  ASSERT_TRUE(Resume(0, Kept(12)).ok());
  EXPECT_EQ(job_.coordinator_->Join(one)->incarnation, incarnation);
  EXPECT_EQ(job_.Group().state, GroupState::kActive);
  // Also a late one of the former life, which does not come into the present one.
  EXPECT_EQ(job_.coordinator_->Join(TestJoin(0, kRanks))->incarnation, former);
  EXPECT_TRUE(absl::IsFailedPrecondition(job_.coordinator_->Join(TestJoin(1, kRanks)).status()));
  EXPECT_EQ(job_.Group().state, GroupState::kActive);
}

TEST_F(GroupResumes, Done_OnlyOnceNobodyComesBackWithinTheGrace) {
  job_.options_.group.resume_grace = absl::Seconds(10);
  job_.StartCoordinator();
  KillRankOneAndNotice();
  ASSERT_TRUE(job_.coordinator_->Leave(job_.callers_[0], {12, StepOutcome::kIdle}).ok());
  EXPECT_FALSE(job_.coordinator_->Done());
  job_.Pass(absl::Seconds(9), {});
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  EXPECT_FALSE(job_.coordinator_->Done());
  job_.Kill(1);
  job_.Pass(absl::Seconds(9), {});
  EXPECT_FALSE(job_.coordinator_->Done());
  job_.Pass(absl::Seconds(2), {});
  EXPECT_TRUE(job_.coordinator_->Done());
}

TEST_F(GroupResumes, Done_AtOnceWithoutAGraceOrWhenTheNextLifeFinishes) {
  KillRankOneAndNotice();
  EXPECT_FALSE(job_.coordinator_->Done());
  ASSERT_TRUE(job_.coordinator_->Leave(job_.callers_[0], {12, StepOutcome::kIdle}).ok());
  EXPECT_TRUE(job_.coordinator_->Done());
  ASSERT_TRUE(Resume(0, Kept(12)).ok());
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  for (Rank rank : {0, 1}) {
    EXPECT_FALSE(job_.coordinator_->Done());
    ASSERT_TRUE(job_.coordinator_->Leave(job_.callers_[rank], {14, StepOutcome::kIdle}).ok());
  }
  EXPECT_EQ(job_.Group().state, GroupState::kFinished);
  EXPECT_TRUE(job_.coordinator_->Done());
}

TEST_F(GroupResumes, Shutdown_EndsTheStreamsOfBothLives) {
  KillRankOneAndNotice();
  const Life survivor = LifeOf(0);
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  const int woken = job_.wakes_[0];
  job_.coordinator_->Shutdown();
  EXPECT_EQ(job_.wakes_[0], woken + 1);
  EXPECT_TRUE(absl::IsUnavailable(
      job_.coordinator_->ReadEvents(survivor.caller, survivor.watch, 0).status()));
}

TEST_F(GroupResumes, SuccessorWithoutItsSpec_BeginsTheNextLifeOnlyWhereItIsKnown) {
  KillRankOne();
  JoinRequest other = Successor(1, Kept(12));
  other.spec.space = TestSpace(5);
  EXPECT_EQ(job_.coordinator_->Join(WithoutSpec(other))->answer, JoinAnswer::kSendSpec);
  EXPECT_EQ(job_.Group().state, GroupState::kActive);
  EXPECT_TRUE(job_.Failure(0).ok());

  for (const Rank rank : {1, 0}) {
    ASSERT_TRUE(job_.Join(WithoutSpec(Successor(rank, Kept(12)))).ok());
  }
  ExpectActive(2, 12);
}

// Its added parameters may have no values while others have theirs.
TEST_F(GroupResumes, OneRankLacksValues_AllAreTold) {
  for (const Rank lacking : {0, 1, -1}) {
    KillRankOneAndNotice();
    for (Rank rank = 0; rank < kRanks; ++rank) {
      KeptState kept = Kept(12);
      kept.lacks_values = rank == lacking;
      ASSERT_EQ(Resume(rank, kept), absl::OkStatus());
    }
    for (Rank rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(PlanOf(rank)->ready->lacks_values, lacking >= 0) << "rank " << rank;
    }
    job_.StartCoordinator();
  }
}

// A server that was killed before it wrote down that the state is torn comes back without knowing.
TEST_F(GroupResumes, OneRankKnowsThatTheStateIsTorn_AllAreTold) {
  for (const Rank knowing : {0, 1, -1}) {
    KillRankOneAndNotice();
    for (Rank rank = 0; rank < kRanks; ++rank) {
      KeptState kept = Kept(0);
      kept.is_torn = rank == knowing;
      ASSERT_EQ(Resume(rank, kept), absl::OkStatus());
    }
    for (Rank rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(PlanOf(rank)->ready->is_torn, knowing >= 0) << "rank " << rank;
    }
    job_.StartCoordinator();
  }
}

}  // namespace
}  // namespace optshard
