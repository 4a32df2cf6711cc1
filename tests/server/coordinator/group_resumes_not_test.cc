// Ranks bring their state back, and the group cannot go on from it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/errors.h"
#include "tests/server/coordinator/group_resumes.h"
#include "tests/server/coordinator/join_requests.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Refused {
  const char* name;
  absl::optional<KeptState> zero;
  absl::optional<KeptState> one;
  bool (*kind)(const absl::Status&);
  const char* text;
};

class GroupResumesNot : public GroupResumes, public ::testing::WithParamInterface<Refused> {};

TEST_P(GroupResumesNot, AllAreToldWhy_AndAllMayTryAgain) {
  KillRankOneAndNotice();
  // The one that brings state first: without state nobody can come to a group that has failed.
  const bool zero_first = GetParam().zero.has_value();
  ASSERT_TRUE(Resume(zero_first ? 0 : 1, zero_first ? GetParam().zero : GetParam().one).ok());
  ASSERT_TRUE(Resume(zero_first ? 1 : 0, zero_first ? GetParam().one : GetParam().zero).ok());
  EXPECT_EQ(job_.Group().state, GroupState::kFailed);
  for (Rank rank : {0, 1}) {
    const absl::Status told = PlanOf(rank).status();
    EXPECT_TRUE(GetParam().kind(told)) << told;
    EXPECT_THAT(told.ToString(), AllOf(HasSubstr("cannot go on"), HasSubstr(GetParam().text)));
  }
  ASSERT_TRUE(Resume(0, Kept(12)).ok());
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  ExpectActive(2, 12);
}

INSTANTIATE_TEST_SUITE_P(
    All, GroupResumesNot,
    ::testing::Values(
        Refused{"OnlyOneBringsState", KeptState{1, {12, StepOutcome::kIdle}}, absl::nullopt,
                errors::IsRanksDisagree, "rank 0 brings the state of step 12, rank 1 brings none"},
        Refused{"OnlyTheOtherBringsState", absl::nullopt, KeptState{1, {12, StepOutcome::kIdle}},
                errors::IsRanksDisagree, "rank 1 brings the state of step 12, rank 0 brings none"},
        Refused{"Torn", KeptState{1, {12, StepOutcome::kIdle}},
                KeptState{1, {12, StepOutcome::kTorn}}, errors::IsTornStep, "step 13 is torn"},
        Refused{"OtherSteps", KeptState{1, {12, StepOutcome::kNotApplied}},
                KeptState{1, {13, StepOutcome::kIdle}}, errors::IsTornStep,
                "rank 1 has applied it"}),
    [](const auto& info) { return info.param.name; });

TEST_F(GroupResumes, OtherGenerations_GoOnAndTheNextPlanIsAboveAll) {
  KillRankOneAndNotice();
  ASSERT_TRUE(Resume(0, Kept(12)).ok());
  ASSERT_TRUE(Resume(1, Kept(12, StepOutcome::kIdle, 7)).ok());
  ExpectActive(8, 12);
}

TEST_F(GroupResumes, StateComesToAGroupThatBegins_AllAreToldAndNobodyIsPushedOut) {
  ASSERT_TRUE(job_.Join(0).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Resume(0, Kept(12))));
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  for (Rank rank : {0, 1}) EXPECT_TRUE(errors::IsRanksDisagree(PlanOf(rank).status()));
}

// Its first answer may have been lost, and its lease with it.
TEST_F(GroupResumes, RetryOfARankThatWasLostMeanwhile_BeginsAnotherLife) {
  KillRankOneAndNotice();
  const JoinRequest one = Successor(1, Kept(12));
  ASSERT_TRUE(job_.Join(one).ok());
  job_.Kill(1);
  job_.Pass(absl::Milliseconds(300), {});
  EXPECT_TRUE(job_.coordinator_->Join(one).ok());
  EXPECT_EQ(job_.Group().state, GroupState::kForming);
}

TEST_F(GroupResumes, WithoutState_NobodyComesToAGroupThatFailed) {
  KillRankOneAndNotice();
  EXPECT_TRUE(absl::IsFailedPrecondition(Resume(1, absl::nullopt)));
}

TEST_F(GroupResumes, GroupThatNeverHadAPlan_StaysFailed) {
  ASSERT_TRUE(job_.Join(0).ok());
  job_.Kill(0);
  job_.Pass(absl::Milliseconds(300), {});
  EXPECT_TRUE(absl::IsFailedPrecondition(Resume(0, Kept(12))));
}

TEST_F(GroupResumes, GroupThatFinished_StaysFinished) {
  job_.JoinAll();
  for (Rank rank : {0, 1}) {
    ASSERT_TRUE(job_.coordinator_->Leave(job_.callers_[rank], {12, StepOutcome::kIdle}).ok());
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(Resume(0, Kept(12))));
  EXPECT_EQ(job_.Group().state, GroupState::kFinished);
}

TEST_F(GroupResumes, OtherParameters_TheDisagreementIsTheRetrysAnswerToo) {
  KillRankOneAndNotice();
  ASSERT_TRUE(Resume(1, Kept(12)).ok());
  JoinRequest other = Successor(0, Kept(12));
  other.spec.space = TestSpace(5);
  const absl::Status status = job_.coordinator_->Join(other).status();
  EXPECT_TRUE(errors::IsRanksDisagree(status));
  EXPECT_EQ(job_.Failure(1), status);
  EXPECT_EQ(job_.coordinator_->Join(other).status(), status);
}

}  // namespace
}  // namespace optshard
