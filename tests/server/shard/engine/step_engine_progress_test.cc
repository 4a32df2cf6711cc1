// What a rank, and the ledger in its memory, say of a step when a rank dies at a known point of it.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "common/errors.h"
#include "common/gradient_mode.h"
#include "gtest/gtest.h"
#include "server/coordinator/recovery_point.h"
#include "server/shard/engine/step_engine.h"
#include "server/shard/engine/step_input.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {
namespace {

constexpr int kRanks = 3;

EngineRig::Options OptionsFor(Placement placement, FakeHub::Mode mode) {
  EngineRig::Options options;
  options.world_size = kRanks;
  options.placements = {placement};
  options.mode = mode;
  // Without reductions the votes are the first operation of a step.
  options.gradient_mode = GradientMode::kAveraged;
  return options;
}

std::vector<EngineRig::Options> AllOptions() {
  std::vector<EngineRig::Options> all;
  for (const Placement placement :
       {Placement::kFlatRegions, Placement::kReachable, Placement::kNodes}) {
    for (const FakeHub::Mode mode : {FakeHub::Mode::kImmediate, FakeHub::Mode::kDelayed}) {
      all.push_back(OptionsFor(placement, mode));
    }
  }
  return all;
}

void StepOnce(EngineRig& rig) {
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
}

StepProgress LedgerOf(EngineRig& rig, Rank rank) {
  return rig.rank(rank).store->ledger().progress();
}

absl::StatusOr<StepProgress> SettleLedgers(EngineRig& rig) {
  std::vector<absl::optional<KeptState>> kept;
  for (Rank r = 0; r < kRanks; ++r) kept.push_back(KeptState{1, LedgerOf(rig, r)});
  return FindRecoveryPoint(kept);
}

TEST(StepEngine_RankKilledBeforeItsVote, LedgersSettleOnTheStepBefore) {
  for (const EngineRig::Options& options : AllOptions()) {
    EngineRig rig(options);
    StepOnce(rig);
    rig.GiveAllGradients();
    rig.hub().KillAt(1, rig.hub().OperationsStarted(1));
    for (const StepEngine::Result& result : rig.Step()) {
      EXPECT_FALSE(result.status.ok());
      EXPECT_NE(result.outcome, StepOutcome::kTorn);
      EXPECT_NE(result.outcome, StepOutcome::kApplied);
    }
    const absl::StatusOr<StepProgress> settled = SettleLedgers(rig);
    ASSERT_TRUE(settled.ok()) << settled.status();
    EXPECT_EQ(settled->finished, 1);
    EXPECT_EQ(rig.DifferenceToOracle(), "");
  }
}

TEST(StepEngine_RankKilledBetweenVoteAndLedger, IsInDoubtAndTheStepIsTorn) {
  for (const EngineRig::Options& options : AllOptions()) {
    EngineRig rig(options);
    StepOnce(rig);
    rig.GiveAllGradients();
    rig.hub().KillInWaitFor(1, rig.hub().OperationsStarted(1));
    const std::vector<StepEngine::Result> results = rig.Step();
    EXPECT_EQ(results[1].outcome, StepOutcome::kInDoubt) << results[1].status;
    EXPECT_EQ(LedgerOf(rig, 1).finished, 1);
    EXPECT_EQ(LedgerOf(rig, 1).outcome, StepOutcome::kIdle);
    EXPECT_TRUE(errors::IsTornStep(SettleLedgers(rig).status()));
  }
}

// Whoever refuses knows that nobody applies the step.
TEST(StepEngine_RankThatRefusesAndLosesTheOthers, IsNotInDoubt) {
  for (const EngineRig::Options& options : AllOptions()) {
    EngineRig rig(options);
    StepOnce(rig);
    rig.GiveAllGradients();
    rig.rank(1).hyperparameters[0].Set("lr", -1.0);
    rig.hub().KillInWaitFor(1, rig.hub().OperationsStarted(1));
    const std::vector<StepEngine::Result> results = rig.Step();
    EXPECT_TRUE(results[1].plane_failed) << results[1].status;
    EXPECT_EQ(results[1].outcome, StepOutcome::kNotApplied);
    EXPECT_EQ(rig.DifferenceToOracle(), "");
  }
}

TEST(StepEngine_RankKilledInTheGatherThatEndsAStep, HasAppliedButNotFinishedIt) {
  for (const FakeHub::Mode mode : {FakeHub::Mode::kImmediate, FakeHub::Mode::kDelayed}) {
    EngineRig rig(OptionsFor(Placement::kReachable, mode));
    StepOnce(rig);
    rig.GiveAllGradients();
    // The votes, then this one.
    rig.hub().KillInWaitFor(1, rig.hub().OperationsStarted(1) + 1);
    const std::vector<StepEngine::Result> results = rig.Step();
    for (const Rank r : {0, 2}) EXPECT_TRUE(results[r].status.ok()) << results[r].status;
    EXPECT_EQ(results[1].outcome, StepOutcome::kApplied) << results[1].status;
    EXPECT_EQ(rig.rank(1).engine->finished(), 1);
    EXPECT_EQ(LedgerOf(rig, 1).finished, 1);
    EXPECT_EQ(LedgerOf(rig, 1).outcome, StepOutcome::kApplied);
    const absl::StatusOr<StepProgress> settled = SettleLedgers(rig);
    ASSERT_TRUE(settled.ok()) << settled.status();
    EXPECT_EQ(settled->finished, 2);
    rig.StepOracleAlong();
    EXPECT_EQ(rig.DifferenceToOracle(), "");
  }
}

// Another rank of the node may still be writing to this rank's replica.
TEST(StepEngine_RankOfANodeThatHasNotSaidThatItIsDone, IsWaitedForByItsNode) {
  EngineRig::Options options = OptionsFor(Placement::kNodes, FakeHub::Mode::kImmediate);
  EngineRig rig(options);
  StepOnce(rig);
  const int64_t operations = rig.hub().OperationsStarted(2);
  rig.GiveAllGradients();
  // The gather that ends the step is its last operation; rank 0 is on the same node.
  rig.hub().HangAt(2, 2 * operations - 1);
  StepEngine::Result of_rank_0;
  rig.OnEveryRank([&](Rank r) {
    StepInput input;
    input.replica = rig.rank(r).replica->tensors();
    input.regions = rig.rank(r).replica->regions();
    input.hyperparameters = rig.rank(r).hyperparameters;
    input.timeout = r == 0 ? absl::Milliseconds(100) : absl::Seconds(20);
    const StepEngine::Result result = rig.rank(r).engine->Step(input);
    if (r != 0) return;
    of_rank_0 = result;
    rig.hub().ReleaseHung();
  });
  EXPECT_TRUE(errors::IsPeersTimedOut(of_rank_0.status)) << of_rank_0.status;
  EXPECT_EQ(errors::RanksOf(of_rank_0.status), std::vector<Rank>{2});
  EXPECT_EQ(of_rank_0.outcome, StepOutcome::kApplied);
}

TEST(StepEngine_SkippedCalls, AreCountedInTheLedger) {
  EngineRig rig(OptionsFor(Placement::kFlatRegions, FakeHub::Mode::kImmediate));
  StepOnce(rig);
  for (int skipped = 1; skipped <= 2; ++skipped) {
    rig.GiveGradients([](StepNumber, Rank, int) { return false; });
    ExpectAllOk(rig.Step());
    EXPECT_EQ(LedgerOf(rig, 2).finished, 1);
    EXPECT_EQ(LedgerOf(rig, 2).skipped, skipped);
    EXPECT_EQ(rig.rank(2).engine->progress().skipped, skipped);
  }
  StepOnce(rig);
  EXPECT_EQ(LedgerOf(rig, 2).finished, 2);
  EXPECT_EQ(LedgerOf(rig, 2).skipped, 2);
}

TEST(StepEngine_MadeOverTheStateOfAnotherOne, GoesOnAfterItsStepsAndSkippedCalls) {
  EngineRig rig(OptionsFor(Placement::kFlatRegions, FakeHub::Mode::kImmediate));
  StepOnce(rig);
  rig.GiveGradients([](StepNumber, Rank, int) { return false; });
  ExpectAllOk(rig.Step());
  for (Rank r = 0; r < kRanks; ++r) rig.RemakeEngine(r);
  EXPECT_EQ(rig.rank(1).engine->progress().finished, 1);
  EXPECT_EQ(rig.rank(1).engine->progress().skipped, 1);
  StepOnce(rig);
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

}  // namespace
}  // namespace optshard::testing
