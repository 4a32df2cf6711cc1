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
  static constexpr uint64_t kFirst = 100;  // process of rank 0, and the next one of rank 1

  static JoinRequest By(uint64_t process, JoinRequest request, bool replaces = false) {
    request.begins_anew = BeginsAnew{process, replaces};
    return request;
  }
  // By a process that had no owner before.
  JoinRequest New(Rank rank, uint64_t process = 200) {
    return By(process, Successor(rank, absl::nullopt));
  }
  // By the rank's first process, whose owner is broken.
  JoinRequest Again(Rank rank) {
    return By(kFirst + rank, Successor(rank, absl::nullopt), /*replaces=*/true);
  }

  void JoinAll() {
    for (const Rank rank : {0, 1}) {
      ASSERT_TRUE(job_.Join(By(kFirst + rank, TestJoin(rank, kRanks))).ok());
      job_.callers_[rank].generation = 1;
      job_.progress_[rank] = {12, StepOutcome::kIdle};
    }
    job_.callers_[0].generation = 1;
    job_.Pass(absl::Milliseconds(100), {0, 1});
  }
  void KillOne() {
    JoinAll();
    job_.Kill(1);
  }
  void KillOneAndNotice() {
    KillOne();
    job_.Pass(absl::Milliseconds(300), {0});
    ASSERT_EQ(job_.Group().state, GroupState::kFailed);
  }
};

TEST_F(GroupBeginsAnew, ASurvivorAndASuccessor_BothFormTheNextLifeAfterStepZero) {
  KillOneAndNotice();
  const Life survivor = LifeOf(0);
  ASSERT_TRUE(job_.Join(New(1)).ok());
  ASSERT_TRUE(job_.Join(Again(0)).ok());
  ExpectActive(2, 0);
  EXPECT_GT(job_.callers_[0].member.incarnation, survivor.caller.member.incarnation);
  // Whoever has not loaded yet makes no step, the new process neither.
  for (const Rank rank : {0, 1}) EXPECT_TRUE(PlanOf(rank)->ready->is_torn);
  // Its process ends what it had before.
  EXPECT_TRUE(errors::IsPeerLost(EventsOf(survivor).back().failure));
  EXPECT_TRUE(job_.coordinator_->Leave(survivor.caller, {12, StepOutcome::kIdle}).ok());
  ExpectActive(2, 0);
}

TEST_F(GroupBeginsAnew, ASecondProcessOfALivingRank_IsToldWhyTheOptimizerHasFailed) {
  KillOneAndNotice();
  for (const uint64_t process : {kFirst, uint64_t{200}}) {
    const absl::Status told = job_.Join(New(0, process));
    EXPECT_TRUE(absl::IsFailedPrecondition(told)) << told;
    EXPECT_THAT(std::string(told.message()), HasSubstr("has failed"));
  }
  EXPECT_EQ(job_.Group().state, GroupState::kFailed);
  // It may once the rank has left.
  ASSERT_TRUE(job_.coordinator_->Leave(job_.callers_[0], {12, StepOutcome::kIdle}).ok());
  ASSERT_TRUE(job_.Join(New(0)).ok());
  ASSERT_TRUE(job_.Join(New(1)).ok());
  EXPECT_FALSE(PlanOf(0)->ready->is_torn);  // all are new
}

TEST_F(GroupBeginsAnew, BeforeTheLossIsKnown_OnlyTheRanksOwnProcessProvesIt) {
  KillOne();
  EXPECT_TRUE(absl::IsAlreadyExists(job_.Join(New(1))));
  EXPECT_EQ(job_.Group().state, GroupState::kActive);
  const Life other = LifeOf(1);
  ASSERT_TRUE(job_.Join(Again(0)).ok());
  EXPECT_EQ(job_.Group().state, GroupState::kForming);
  EXPECT_EQ(errors::RanksOf(EventsOf(other).back().failure), std::vector<Rank>({0}));
}

TEST_F(GroupBeginsAnew, NotAllCome_AllAreToldWhoAndMayTryAgain) {
  KillOneAndNotice();
  ASSERT_TRUE(job_.Join(Again(0)).ok());
  job_.Pass(absl::Seconds(61), {0});
  EXPECT_TRUE(errors::IsPeersTimedOut(job_.Failure(0)));
  EXPECT_EQ(errors::RanksOf(job_.Failure(0)), std::vector<Rank>({1}));
  ASSERT_TRUE(job_.Join(New(1)).ok());
  ASSERT_TRUE(job_.Join(Again(0)).ok());
  ExpectActive(2, 0);
}

// Its process has not left in good order, and does not wait for its lease.
TEST_F(GroupBeginsAnew, TheNextLifeBreaks_TheSameProcessBeginsAnotherOneAtOnce) {
  KillOneAndNotice();
  ASSERT_TRUE(job_.Join(New(1)).ok());
  ASSERT_TRUE(job_.Join(Again(0)).ok());
  ExpectActive(2, 0);
  job_.Kill(0);
  ASSERT_TRUE(job_.Join(Again(0)).ok());
  EXPECT_EQ(job_.Group().state, GroupState::kForming);
}

TEST_F(GroupBeginsAnew, RetryOfARankThatWasLostMeanwhile_BeginsAnotherLife) {
  KillOneAndNotice();
  const JoinRequest again = Again(0);
  ASSERT_TRUE(job_.Join(again).ok());
  job_.Kill(0);
  job_.Pass(absl::Milliseconds(300), {});
  EXPECT_TRUE(job_.coordinator_->Join(again).ok());
  EXPECT_EQ(job_.Group().state, GroupState::kForming);
}

TEST_F(GroupBeginsAnew, AnotherHasState_AllAreTold) {
  KillOneAndNotice();
  ASSERT_TRUE(job_.Join(Again(0)).ok());
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  EXPECT_TRUE(errors::IsRanksDisagree(PlanOf(0).status())) << PlanOf(0).status();
}

TEST_F(GroupBeginsAnew, WithoutItsSpec_OnlyWhereThatIsKnown) {
  KillOneAndNotice();
  JoinRequest other = New(1);
  other.spec.space = TestSpace(5);
  EXPECT_EQ(job_.coordinator_->Join(WithoutSpec(other))->answer, JoinAnswer::kSendSpec);
  EXPECT_EQ(job_.Group().state, GroupState::kFailed);
  ASSERT_TRUE(job_.Join(WithoutSpec(New(1))).ok());
  ASSERT_TRUE(job_.Join(WithoutSpec(Again(0))).ok());
  ExpectActive(2, 0);
}

TEST_F(GroupBeginsAnew, WhatNeverHadAPlanOrHasFinished_StaysSo) {
  ASSERT_TRUE(job_.Join(0).ok());
  job_.Kill(0);
  job_.Pass(absl::Milliseconds(300), {});
  EXPECT_TRUE(absl::IsFailedPrecondition(job_.Join(New(0))));
  job_.StartCoordinator();
  job_.JoinAll();
  for (const Rank rank : {0, 1}) {
    ASSERT_TRUE(job_.coordinator_->Leave(job_.callers_[rank], {12, StepOutcome::kIdle}).ok());
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(job_.Join(New(0))));
}

}  // namespace
}  // namespace optshard
