// A job whose state ends with its processes fails, and its ranks begin it anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/errors.h"
#include "tests/server/coordinator/group_resumes.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

class GroupBeginsAnew : public GroupResumes {
 protected:
  // By a new process where there was none before.
  JoinRequest Anew(Rank rank, Incarnation before = 0) {
    JoinRequest request = Successor(rank, absl::nullopt);
    request.begins_anew = before;
    return request;
  }
  Incarnation IncarnationOf(Rank rank) const { return job_.callers_[rank].member.incarnation; }
};

TEST_F(GroupBeginsAnew, ASurvivorAndASuccessor_BothFormTheNextLifeAfterStepZero) {
  KillRankOneAndNotice();
  const Life survivor = LifeOf(0);
  ASSERT_TRUE(job_.Join(Anew(1)).ok());
  ASSERT_TRUE(job_.Join(Anew(0, IncarnationOf(0))).ok());
  ExpectActive(2, 0);
  EXPECT_GT(IncarnationOf(0), survivor.caller.member.incarnation);
  // Its process ends what it had before.
  EXPECT_TRUE(errors::IsPeerLost(EventsOf(survivor).back().failure));
  EXPECT_TRUE(job_.coordinator_->Leave(survivor.caller, {12, StepOutcome::kIdle}).ok());
  ExpectActive(2, 0);
}

TEST_F(GroupBeginsAnew, ASecondProcessOfALivingRank_IsToldWhyTheOptimizerHasFailed) {
  KillRankOneAndNotice();
  for (const Incarnation other : {Incarnation{0}, IncarnationOf(0) + 1}) {
    const absl::Status told = job_.Join(Anew(0, other));
    EXPECT_TRUE(absl::IsFailedPrecondition(told)) << told;
    EXPECT_THAT(std::string(told.message()), HasSubstr("has failed"));
  }
  EXPECT_EQ(job_.Group().state, GroupState::kFailed);
  // It may once the rank has left.
  ASSERT_TRUE(job_.coordinator_->Leave(job_.callers_[0], {12, StepOutcome::kIdle}).ok());
  EXPECT_TRUE(job_.Join(Anew(0)).ok());
}

TEST_F(GroupBeginsAnew, BeforeTheLossIsKnown_OnlyTheRanksOwnProcessProvesIt) {
  KillRankOne();
  EXPECT_TRUE(absl::IsAlreadyExists(job_.Join(Anew(1))));
  EXPECT_EQ(job_.Group().state, GroupState::kActive);
  const Life other = LifeOf(1);
  ASSERT_TRUE(job_.Join(Anew(0, IncarnationOf(0))).ok());
  EXPECT_EQ(job_.Group().state, GroupState::kForming);
  EXPECT_EQ(errors::RanksOf(EventsOf(other).back().failure), std::vector<Rank>({0}));
}

TEST_F(GroupBeginsAnew, NotAllCome_AllAreToldWhoAndMayTryAgain) {
  KillRankOneAndNotice();
  ASSERT_TRUE(job_.Join(Anew(1)).ok());
  job_.Pass(absl::Seconds(61), {1});
  EXPECT_TRUE(errors::IsPeersTimedOut(job_.Failure(1)));
  EXPECT_EQ(errors::RanksOf(job_.Failure(1)), std::vector<Rank>({0}));
  ASSERT_TRUE(job_.Join(Anew(0)).ok());
  ASSERT_TRUE(job_.Join(Anew(1, IncarnationOf(1))).ok());
  ExpectActive(2, 0);
}

TEST_F(GroupBeginsAnew, AnotherHasState_AllAreTold) {
  KillRankOneAndNotice();
  ASSERT_TRUE(job_.Join(Anew(0, IncarnationOf(0))).ok());
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  EXPECT_TRUE(errors::IsRanksDisagree(PlanOf(0).status())) << PlanOf(0).status();
}

TEST_F(GroupBeginsAnew, WithoutItsSpec_OnlyWhereThatIsKnown) {
  KillRankOneAndNotice();
  JoinRequest other = Anew(1);
  other.spec.space = TestSpace(5);
  EXPECT_EQ(job_.coordinator_->Join(WithoutSpec(other))->answer, JoinAnswer::kSendSpec);
  EXPECT_EQ(job_.Group().state, GroupState::kFailed);
  ASSERT_TRUE(job_.Join(WithoutSpec(Anew(1))).ok());
  ASSERT_TRUE(job_.Join(WithoutSpec(Anew(0, IncarnationOf(0)))).ok());
  ExpectActive(2, 0);
}

TEST_F(GroupBeginsAnew, WhatNeverHadAPlanOrHasFinished_StaysSo) {
  ASSERT_TRUE(job_.Join(0).ok());
  job_.Kill(0);
  job_.Pass(absl::Milliseconds(300), {});
  EXPECT_TRUE(absl::IsFailedPrecondition(job_.Join(Anew(0))));
  job_.StartCoordinator();
  job_.JoinAll();
  for (const Rank rank : {0, 1}) {
    ASSERT_TRUE(job_.coordinator_->Leave(job_.callers_[rank], {12, StepOutcome::kIdle}).ok());
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(job_.Join(Anew(0))));
}

}  // namespace
}  // namespace optshard
