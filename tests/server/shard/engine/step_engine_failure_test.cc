// A rank that dies or hangs at any operation of a step: all others are told, nothing hangs, and
// what each believes about the step fits together.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/gradient_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/recovery_point.h"
#include "server/shard/engine/step_input.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

EngineRig::Options SmallOptions(int world_size, GradientMode gradient_mode, FakeHub::Mode mode) {
  GroupSpec group;
  for (int p = 0; p < 4; ++p) {
    ParameterSpec spec;
    spec.name = absl::StrCat("p", p);
    spec.shape = {200 + 16 * p};
    group.parameters.push_back(spec);
  }
  EngineRig::Options options;
  options.world_size = world_size;
  options.gradient_mode = gradient_mode;
  options.mode = mode;
  options.space = ParameterSpace({group});
  options.buckets = {512, 128};
  options.window = 3;
  return options;
}

// Operations that one rank starts in a step.
int64_t OperationsOfAStep(const EngineRig::Options& options) {
  EngineRig rig(options);
  rig.GiveAllGradients();
  for (const StepEngine::Result& result : rig.Step()) EXPECT_TRUE(result.status.ok());
  return rig.hub().OperationsStarted(0);
}

// Who must name the lost rank. A killed one is known at once, to all. A hung one is missed when a
// deadline passes, and so is whoever is slow; once the first rank has given up, others may see that
// one go. With two ranks there is nobody else to blame; with more it takes a coordinator to have
// all name the same (shard_owner_failure_test.cc).
enum class NamedBy { kAll, kNobodyForSure };

// What the ranks say of a step in which `lost` was lost must fit together.
void ExpectConsistent(const std::vector<StepEngine::Result>& results, Rank lost, NamedBy named_by) {
  bool applied = false;
  bool not_applied = false;
  int failed = 0;
  int named = 0;
  for (size_t r = 0; r < results.size(); ++r) {
    const StepEngine::Result& result = results[r];
    if (static_cast<Rank>(r) == lost) {
      EXPECT_FALSE(result.status.ok());
      continue;
    }
    // Somebody began to apply the step: then nobody may say that it cannot have been applied.
    applied = applied || result.status.ok() || result.outcome == StepOutcome::kTorn ||
              result.outcome == StepOutcome::kApplied;
    not_applied = not_applied || result.outcome == StepOutcome::kNotApplied;
    if (result.status.ok()) continue;
    EXPECT_TRUE(result.plane_failed);
    ++failed;
    const std::vector<Rank> ranks = errors::RanksOf(result.status);
    EXPECT_THAT(ranks, Not(IsEmpty())) << "rank " << r << ": " << result.status;
    if (std::find(ranks.begin(), ranks.end(), lost) != ranks.end()) ++named;
  }
  if (named_by == NamedBy::kAll) {
    EXPECT_EQ(named, failed) << "named rank " << lost;
  }
  EXPECT_FALSE(applied && not_applied);
}

struct FailureCase {
  int world_size;
  GradientMode gradient_mode;
  FakeHub::Mode mode;
  Placement placement = Placement::kFlatRegions;
};

std::vector<FailureCase> AllCases() {
  std::vector<FailureCase> cases;
  for (const int world_size : {2, 3, 4}) {
    for (const GradientMode gradient_mode : {GradientMode::kAveraged, GradientMode::kReduce}) {
      for (const FakeHub::Mode mode : {FakeHub::Mode::kImmediate, FakeHub::Mode::kDelayed}) {
        cases.push_back({world_size, gradient_mode, mode});
      }
    }
  }
  return cases;
}

TEST(StepEngine_RankKilledAtAnyOperation_OthersNameIt, OutcomesFitTogether) {
  std::vector<FailureCase> cases = AllCases();
  for (const FailureCase& failure : AllCases()) {
    cases.push_back(failure);
    cases.back().placement = Placement::kNodes;
  }
  for (const FailureCase& failure : cases) {
    EngineRig::Options options =
        SmallOptions(failure.world_size, failure.gradient_mode, failure.mode);
    options.placements = {failure.placement};
    const int64_t operations = OperationsOfAStep(options);
    ASSERT_GT(operations, 4);
    for (int64_t at = 0; at < operations; ++at) {
      SCOPED_TRACE(absl::StrCat(NameOf(failure.placement), ", world size ", failure.world_size,
                                ", gradients ", std::string(NameOf(failure.gradient_mode)),
                                ", operation ", at));
      const Rank lost = static_cast<Rank>(at % failure.world_size);
      EngineRig rig(options);
      // A step that goes well comes first: the state is not the initial one.
      rig.GiveAllGradients();
      for (const StepEngine::Result& result : rig.Step()) ASSERT_TRUE(result.status.ok());
      rig.StepOracleAlong();
      rig.GiveAllGradients();
      rig.hub().KillAt(lost, operations + at);
      const std::vector<StepEngine::Result> results = rig.Step();
      ExpectConsistent(results, lost, NamedBy::kAll);
      // A step that everybody is sure not to have applied has left no trace.
      bool untouched = true;
      for (const StepEngine::Result& result : results) {
        untouched = untouched && result.outcome == StepOutcome::kNotApplied;
      }
      if (untouched) {
        EXPECT_EQ(rig.DifferenceToOracle(), "");
      }
    }
  }
}

// What the ledgers say, whatever the ranks themselves have heard, is what the state is worth. How
// far the others have come when a rank dies depends on scheduling; step_engine_progress_test.cc has
// the points at which it does not.
TEST(StepEngine_RankKilledAtAnyOperation_LedgersSettle, OnTheStepThatAllBitsAreOf) {
  for (const Placement placement :
       {Placement::kFlatRegions, Placement::kReachable, Placement::kNodes}) {
    for (const FailureCase& failure : AllCases()) {
      EngineRig::Options options =
          SmallOptions(failure.world_size, failure.gradient_mode, failure.mode);
      options.placements = {placement};
      const int64_t operations = OperationsOfAStep(options);
      for (int64_t at = 0; at < operations; ++at) {
        SCOPED_TRACE(absl::StrCat("world size ", failure.world_size, ", gradients ",
                                  std::string(NameOf(failure.gradient_mode)), ", operation ", at));
        EngineRig rig(options);
        rig.GiveAllGradients();
        for (const StepEngine::Result& result : rig.Step()) ASSERT_TRUE(result.status.ok());
        rig.StepOracleAlong();
        rig.GiveAllGradients();
        rig.hub().KillAt(static_cast<Rank>(at % failure.world_size), operations + at);
        rig.Step();

        std::vector<absl::optional<KeptState>> kept;
        for (Rank r = 0; r < failure.world_size; ++r) {
          kept.push_back(KeptState{1, rig.rank(r).store->ledger().progress()});
        }
        const absl::StatusOr<StepProgress> settled = FindRecoveryPoint(kept);
        if (!settled.ok()) {
          EXPECT_TRUE(errors::IsTornStep(settled.status())) << settled.status();
          continue;
        }
        if (settled->finished == 2) rig.StepOracleAlong();
        EXPECT_EQ(rig.DifferenceToOracle(), "") << "settled on step " << settled->finished;
      }
    }
  }
}

TEST(StepEngine_RankHangsAtAnyOperation_OthersNameItByTheDeadline, OutcomesFitTogether) {
  for (const FailureCase& failure :
       {FailureCase{2, GradientMode::kAveraged, FakeHub::Mode::kImmediate},
        FailureCase{2, GradientMode::kReduce, FakeHub::Mode::kDelayed},
        FailureCase{3, GradientMode::kReduce, FakeHub::Mode::kDelayed},
        FailureCase{4, GradientMode::kReduce, FakeHub::Mode::kDelayed, Placement::kNodes}}) {
    EngineRig::Options options =
        SmallOptions(failure.world_size, failure.gradient_mode, failure.mode);
    options.placements = {failure.placement};
    const int64_t operations = OperationsOfAStep(options);
    options.timeout = absl::Milliseconds(30);
    for (int64_t at = 0; at < operations; ++at) {
      SCOPED_TRACE(absl::StrCat("world size ", failure.world_size, ", operation ", at));
      const Rank lost = static_cast<Rank>(at % failure.world_size);
      EngineRig rig(options);
      rig.GiveAllGradients();
      rig.hub().HangAt(lost, at);
      std::vector<StepEngine::Result> results(failure.world_size);
      int running = failure.world_size - 1;
      absl::Mutex mutex;
      rig.OnEveryRank([&](Rank r) {
        StepInput input;
        input.replica = rig.rank(r).replica->tensors();
        input.regions = rig.rank(r).replica->regions();
        input.hyperparameters = rig.rank(r).hyperparameters;
        input.timeout = options.timeout;
        results[r] = rig.rank(r).engine->Step(input);
        absl::MutexLock lock(&mutex);
        // The hung rank is let go once all others have returned.
        if (r != lost && --running == 0) rig.hub().ReleaseHung();
      });
      ExpectConsistent(results, lost,
                       failure.world_size == 2 ? NamedBy::kAll : NamedBy::kNobodyForSure);
    }
  }
}

TEST(StepEngine_PlaneAbortedBetweenSteps_ReturnsTheReason, NotApplied) {
  EngineRig rig(SmallOptions(2, GradientMode::kReduce, FakeHub::Mode::kImmediate));
  rig.GiveAllGradients();
  const absl::Status reason = errors::PeerLost(1, "its lease ran out");
  rig.rank(0).plane->Abort(reason);
  const std::vector<StepEngine::Result> results = rig.Step();
  EXPECT_EQ(results[0].status, reason);
  for (const StepEngine::Result& result : results) {
    EXPECT_FALSE(result.status.ok());
    EXPECT_EQ(result.outcome, StepOutcome::kNotApplied);
  }
  EXPECT_EQ(rig.rank(0).engine->finished(), 0);
}

}  // namespace
}  // namespace optshard::testing
