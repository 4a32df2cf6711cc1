#include "server/coordinator/recovery_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/errors.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

using Kept = std::vector<absl::optional<KeptState>>;

KeptState State(StepNumber finished, StepOutcome outcome = StepOutcome::kIdle,
                Generation generation = 1) {
  return KeptState{generation, {finished, outcome}};
}

struct GoesOn {
  const char* name;
  Kept kept;
  StepNumber after;
};

class RecoveryPointFound : public ::testing::TestWithParam<GoesOn> {};

TEST_P(RecoveryPointFound, WhereAllHaveAppliedTheSame) {
  const absl::StatusOr<StepProgress> point = FindRecoveryPoint(GetParam().kept);
  ASSERT_TRUE(point.ok()) << point.status();
  EXPECT_EQ(point->finished, GetParam().after);
  EXPECT_EQ(point->skipped, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    All, RecoveryPointFound,
    ::testing::Values(GoesOn{"NobodyBringsState", {absl::nullopt, absl::nullopt}, 0},
                      GoesOn{"KilledBeforeTheFirstStep", {State(0), State(0)}, 0},
                      GoesOn{"Idle", {State(7), State(7)}, 7},
                      GoesOn{"KilledWhileTheyFormedAgain",
                             {State(7, StepOutcome::kIdle, 2), State(6, StepOutcome::kApplied, 1)},
                             7},
                      GoesOn{"OneRank", {State(7, StepOutcome::kApplied)}, 8},
                      GoesOn{"NobodyApplied",
                             {State(7, StepOutcome::kInStep), State(7, StepOutcome::kNotApplied),
                              State(7, StepOutcome::kInDoubt), State(7)},
                             7},
                      GoesOn{"AllApplied", {State(7, StepOutcome::kApplied), State(8)}, 8},
                      GoesOn{"AllAppliedAndNoneKnew",
                             {State(7, StepOutcome::kApplied), State(7, StepOutcome::kApplied)},
                             8},
                      GoesOn{"AppliedHereInDoubtInTheNext",
                             {State(7, StepOutcome::kApplied), State(8, StepOutcome::kInDoubt)},
                             8}),
    [](const auto& info) { return info.param.name; });

TEST(RecoveryPointOfSkippedCalls, KnowsTheLastThatAnybodyKnowsOf) {
  const KeptState behind = {1, {7, StepOutcome::kIdle, 2}};
  const KeptState ahead = {1, {7, StepOutcome::kIdle, 3}};
  const KeptState applied = {1, {6, StepOutcome::kApplied, 1}};
  const absl::StatusOr<StepProgress> point = FindRecoveryPoint(Kept{behind, ahead, applied});
  ASSERT_TRUE(point.ok()) << point.status();
  EXPECT_EQ(point->finished, 7u);
  EXPECT_EQ(point->skipped, 3u);
}

TEST(RecoveryPointOfSkippedCalls, AreThoseBeforeAStepThatNobodyKnowsToBeFinished) {
  const KeptState applied = {1, {6, StepOutcome::kApplied, 70000}};
  EXPECT_EQ(FindRecoveryPoint(Kept{applied, applied})->skipped, 70000u);
}

struct Refuses {
  const char* name;
  Kept kept;
  bool (*kind)(const absl::Status&);
  std::vector<Rank> ranks;
  std::vector<std::string> texts;
};

class RecoveryPointRefused : public ::testing::TestWithParam<Refuses> {};

TEST_P(RecoveryPointRefused, NamingTheRanks) {
  const absl::Status status = FindRecoveryPoint(GetParam().kept).status();
  EXPECT_TRUE(GetParam().kind(status)) << status;
  EXPECT_EQ(errors::RanksOf(status), GetParam().ranks);
  for (const std::string& text : GetParam().texts) EXPECT_THAT(status.ToString(), HasSubstr(text));
}

INSTANTIATE_TEST_SUITE_P(
    All, RecoveryPointRefused,
    ::testing::Values(
        Refuses{"SomeBringNone",
                {absl::nullopt, State(12)},
                errors::IsRanksDisagree,
                {0},
                {"rank 1 brings the state of step 12, rank 0 brings none", "checkpoint"}},
        Refuses{"ManyBringNone",
                {absl::nullopt, State(12), absl::nullopt, State(12)},
                errors::IsRanksDisagree,
                {0, 2},
                {"ranks 1, 3 bring the state of step 12, ranks 0, 2 bring none"}},
        Refuses{"Torn",
                {State(12), State(12, StepOutcome::kTorn)},
                errors::IsTornStep,
                {1},
                {"step 13 is torn", "rank 1 brings the state of a life that ended while"}},
        Refuses{"AllTorn",
                {State(12, StepOutcome::kTorn), State(12, StepOutcome::kTorn)},
                errors::IsTornStep,
                {0, 1},
                {"step 13 is torn", "ranks 0, 1 bring"}},
        Refuses{"AppliedBySome",
                {State(12, StepOutcome::kApplied), State(12, StepOutcome::kInDoubt)},
                errors::IsTornStep,
                {1},
                {"step 13 is torn", "rank 0 has applied it, rank 1 brings the state of step 12"}},
        Refuses{"OtherSteps",
                {State(12), State(14), State(13)},
                errors::IsTornStep,
                {0, 2},
                {"step 14 is torn", "rank 1 has applied it, ranks 0, 2 bring"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace optshard
