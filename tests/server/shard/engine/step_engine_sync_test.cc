// Synchronisations of the parameters: the first one, and refreshes.

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "common/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/recovery_point.h"
#include "server/shard/engine/step_engine.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {
namespace {

TEST(StepEngine_SyncParameters, GivesAllRanksTheValuesOfRankZero) {
  const std::vector<Placement> mixed = {Placement::kFlatRegions, Placement::kScattered};
  const std::vector<Placement> reachable = {Placement::kReachable};
  const std::vector<Placement> nodes = {Placement::kNodes};
  for (const auto& [policy, placements] : {std::pair(PartitionPolicy::kBalanced, mixed),
                                           std::pair(PartitionPolicy::kReplicated, mixed),
                                           std::pair(PartitionPolicy::kBalanced, nodes),
                                           std::pair(PartitionPolicy::kReplicated, nodes),
                                           std::pair(PartitionPolicy::kBalanced, reachable),
                                           std::pair(PartitionPolicy::kReplicated, reachable)}) {
    EngineRig::Options options;
    options.world_size = 3;
    options.policy = policy;
    options.mode = FakeHub::Mode::kDelayed;
    options.placements = placements;
    EngineRig rig(options);
    for (int p = 0; p < rig.space().parameter_count(); ++p) {
      for (Rank r = 1; r < 3; ++r) {
        rig.rank(r).replica->SetParameter(
            p, OrderSensitiveValues(rig.space().parameter(p), 5000 + 10 * r + p));
      }
    }
    rig.OnEveryRank([&](Rank r) {
      const TestReplica& replica = *rig.rank(r).replica;
      const StepEngine::Result result = rig.rank(r).engine->SyncParameters(
          replica.tensors(), replica.regions(), absl::Seconds(20));
      EXPECT_TRUE(result.status.ok()) << result.status;
    });
    EXPECT_EQ(rig.DifferenceToOracle(), "");
    rig.GiveAllGradients();
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
    EXPECT_EQ(rig.DifferenceToOracle(), "");
  }
}

// Whoever loads state gives all ranks new values first.
TEST(StepEngine_SyncParametersOfStateReplacedInPart, LeavesItSo) {
  EngineRig rig(EngineRig::Options{});
  rig.rank(1).store->ledger().SetReplacing(Replacing::kState);
  rig.OnEveryRank([&](Rank r) {
    const TestReplica& replica = *rig.rank(r).replica;
    EXPECT_TRUE(rig.rank(r)
                    .engine->SyncParameters(replica.tensors(), replica.regions(), absl::Seconds(20))
                    .status.ok());
  });
  EXPECT_EQ(rig.rank(1).store->ledger().progress().outcome, StepOutcome::kTorn);
  rig.GiveAllGradients();
  for (const StepEngine::Result& result : rig.Step()) {
    EXPECT_TRUE(absl::IsDataLoss(result.status)) << result.status;
  }
  rig.rank(1).store->ledger().SetReplacing(Replacing::kNothing);
  ExpectAllOk(rig.Step());
}

TEST(StepEngine_RefusalMeetsASynchronisation, AllGiveItUpAndMayTryAgain) {
  EngineRig::Options options;
  options.world_size = 3;
  options.placements = {Placement::kReachable};
  EngineRig rig(options);
  rig.OnEveryRank([&](Rank r) {
    StepEngine& engine = *rig.rank(r).engine;
    const TestReplica& replica = *rig.rank(r).replica;
    const StepEngine::Result result =
        r == 1 ? engine.Refuse(errors::TrainerGone({1}, "process 7 has ended"))
               : engine.SyncParameters(replica.tensors(), replica.regions(), absl::Seconds(20));
    EXPECT_TRUE(errors::IsTrainerGone(result.status)) << result.status;
    EXPECT_FALSE(result.plane_failed);
  });
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

StepEngine::Result Sync(EngineRig& rig, Rank rank) {
  const TestReplica& replica = *rig.rank(rank).replica;
  return rig.rank(rank).engine->SyncParameters(replica.tensors(), replica.regions(),
                                               absl::Seconds(20));
}

// Other values, on rank 0 only: what a refresh gives to all.
void ChangeRankZero(EngineRig& rig) {
  for (int p = 0; p < rig.space().parameter_count(); ++p) {
    rig.rank(0).replica->SetParameter(p, OrderSensitiveValues(rig.space().parameter(p), 7000 + p));
  }
}

// Whether all parameters of the rank are rank 0's.
bool HasRankZeros(EngineRig& rig, Rank rank) {
  for (int p = 0; p < rig.space().parameter_count(); ++p) {
    if (rig.rank(rank).replica->Parameter(p) != rig.rank(0).replica->Parameter(p)) return false;
  }
  return true;
}

absl::StatusOr<StepProgress> SettleLedgers(EngineRig& rig) {
  std::vector<absl::optional<KeptState>> kept;
  for (Rank r = 0; r < rig.options().world_size; ++r) {
    kept.push_back(KeptState{1, rig.rank(r).store->ledger().progress()});
  }
  return FindRecoveryPoint(kept);
}

EngineRig::Options RefreshOptions(int world_size, FakeHub::Mode mode, Placement placement) {
  EngineRig::Options options;
  options.world_size = world_size;
  options.mode = mode;
  options.placements = {placement};
  options.space = MixedDTypeSpace();
  options.state.master_weights = true;
  return options;
}

// Masters of what was edited become its values; the others keep what their parameters do not hold.
TEST(StepEngine_RefreshWithMasters, TakesWhatWasEditedAndNothingElse) {
  for (const auto& [placement, on_devices] :
       {std::pair(Placement::kFlatRegions, false), std::pair(Placement::kReachable, false),
        std::pair(Placement::kOneCopy, false), std::pair(Placement::kNodes, false),
        std::pair(Placement::kFlatRegions, true)}) {
    for (const int first_dtype : {0, 1, 2}) {
      EngineRig::Options options;
      options.world_size = 3;
      options.policy = PartitionPolicy::kBalanced;
      options.placements = {placement};
      options.on_devices = on_devices;
      options.space = MixedDTypeSpace(first_dtype);
      options.state.master_weights = true;
      EngineRig rig(options);
      ExpectAllOk(rig.SyncParameters());
      for (int step = 1; step <= 6; ++step) {
        if (step == 4) {
          for (const int edited : {0, 5}) {
            const Values values = OrderSensitiveValues(rig.space().parameter(edited), 4711);
            rig.rank(0).replica->SetParameter(edited, values);
            rig.oracle().SetParameter(edited, values);
          }
          ExpectAllOk(rig.SyncParameters());
        }
        rig.GiveAllGradients();
        ExpectAllOk(rig.Step());
        rig.StepOracleAlong();
        ExpectAllOk(rig.Synchronize());
        ASSERT_EQ(rig.DifferenceToOracle(), "") << NameOf(placement) << ", step " << step;
      }
    }
  }
}

TEST(StepEngine_StepBeforeTheFirstSynchronisation, WithMasters_IsRefusedAndChangesNothing) {
  EngineRig::Options options;
  options.space = MixedDTypeSpace();
  options.state.master_weights = true;
  EngineRig rig(options);
  rig.GiveAllGradients();
  for (const StepEngine::Result& result : rig.Step()) {
    EXPECT_TRUE(absl::IsFailedPrecondition(result.status)) << result.status;
    EXPECT_THAT(std::string(result.status.message()),
                ::testing::HasSubstr("synchronise the parameters before the first step"));
  }
  EXPECT_EQ(rig.rank(0).store->step_count(0), 0u);
  ExpectAllOk(rig.SyncParameters());
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

// What is known of a refresh in which a rank was lost fits what the parameters are.
void ExpectKnown(EngineRig& rig, const std::vector<StepEngine::Result>& results, Rank lost) {
  int new_values = 0;
  bool begun = false;
  bool not_begun = false;
  for (Rank r = 0; r < rig.options().world_size; ++r) {
    if (r > 0 && HasRankZeros(rig, r)) ++new_values;
    if (r == lost) continue;
    begun = begun || results[r].status.ok() || results[r].outcome == StepOutcome::kTorn;
    not_begun = not_begun || results[r].outcome == StepOutcome::kNotApplied;
  }
  EXPECT_FALSE(begun && not_begun);
  const bool mixed = new_values > 0 && new_values < rig.options().world_size - 1;
  const absl::StatusOr<StepProgress> settled = SettleLedgers(rig);
  if (settled.ok()) {
    EXPECT_FALSE(mixed) << new_values << " ranks have the new values";
  } else {
    EXPECT_TRUE(errors::IsTornStep(settled.status())) << settled.status();
  }
}

const std::vector<FakeHub::Mode> kModes = {FakeHub::Mode::kImmediate, FakeHub::Mode::kDelayed};
const std::vector<Placement> kPlacements = {Placement::kFlatRegions, Placement::kReachable,
                                            Placement::kNodes};

TEST(StepEngine_RankKilledAnywhereInARefresh, LedgersSettleOnlyOnValuesThatAllHave) {
  for (const Placement placement : kPlacements) {
    for (const FakeHub::Mode mode : kModes) {
      const EngineRig::Options options = RefreshOptions(3, mode, placement);
      int64_t operations = 0;
      {
        EngineRig rig(options);
        ExpectAllOk(rig.SyncParameters());
        operations = rig.hub().OperationsStarted(0);
      }
      ASSERT_GE(operations, 3);
      for (int64_t at = 0; at < operations; ++at) {
        for (const bool in_wait : {false, true}) {
          const Rank lost = static_cast<Rank>(at % 3);
          SCOPED_TRACE(absl::StrCat(NameOf(placement), ", rank ", lost, " killed ",
                                    in_wait ? "while it waits for" : "at", " operation ", at));
          EngineRig rig(options);
          ExpectAllOk(rig.SyncParameters());
          ChangeRankZero(rig);
          if (in_wait) {
            rig.hub().KillInWaitFor(lost, operations + at);
          } else {
            rig.hub().KillAt(lost, operations + at);
          }
          ExpectKnown(rig, rig.SyncParameters(), lost);
        }
      }
    }
  }
}

TEST(StepEngine_RankKilledBetweenVoteAndLedgerOfARefresh, IsInDoubtAndTheOthersAreTorn) {
  for (const Placement placement : kPlacements) {
    for (const FakeHub::Mode mode : kModes) {
      EngineRig rig(RefreshOptions(3, mode, placement));
      ExpectAllOk(rig.SyncParameters());
      ChangeRankZero(rig);
      // The votes come first.
      rig.hub().KillInWaitFor(2, rig.hub().OperationsStarted(2));
      const std::vector<StepEngine::Result> results = rig.SyncParameters();
      EXPECT_EQ(results[0].outcome, StepOutcome::kTorn) << results[0].status;
      EXPECT_EQ(results[1].outcome, StepOutcome::kTorn) << results[1].status;
      EXPECT_EQ(results[2].outcome, StepOutcome::kInDoubt) << results[2].status;
      EXPECT_EQ(rig.rank(2).store->ledger().progress().outcome, StepOutcome::kIdle);
      EXPECT_TRUE(errors::IsTornStep(SettleLedgers(rig).status()));
    }
  }
}

TEST(StepEngine_RankKilledInTheFirstSynchronisation, TearsNothing) {
  for (const Placement placement : kPlacements) {
    EngineRig rig(RefreshOptions(3, FakeHub::Mode::kImmediate, placement));
    rig.hub().KillInWaitFor(2, 0);
    for (const StepEngine::Result& result : rig.SyncParameters()) {
      EXPECT_FALSE(result.status.ok());
      EXPECT_EQ(result.outcome, StepOutcome::kNotApplied);
    }
    EXPECT_TRUE(SettleLedgers(rig).ok());
  }
}

// What was there is whole, and what was added has its values still.
TEST(StepEngine_RankKilledAnywhereInTheFirstSynchronisationOfAddedGroups, TearsNothing) {
  for (const Placement placement : kPlacements) {
    const EngineRig::Options options = RefreshOptions(3, FakeHub::Mode::kImmediate, placement);
    const auto grown = [&options] {
      auto rig = std::make_unique<EngineRig>(options);
      ExpectAllOk(rig->SyncParameters());
      rig->GiveAllGradients();
      ExpectAllOk(rig->Step());
      std::vector<GroupSpec> groups = rig->space().groups();
      groups.push_back(GroupSpec{{{"added", {3000}, DType::kFloat32, "cpu"}}, 1});
      rig->Grow(ParameterSpace(std::move(groups)));
      return rig;
    };
    int64_t operations = 0;
    {
      const auto rig = grown();
      ExpectAllOk(rig->SyncParameters());
      operations = rig->hub().OperationsStarted(0);
    }
    ASSERT_GE(operations, 3);
    for (int64_t at = 0; at < operations; ++at) {
      const Rank lost = static_cast<Rank>(at % 3);
      SCOPED_TRACE(absl::StrCat(NameOf(placement), ", rank ", lost, " killed at operation ", at));
      const auto rig = grown();
      rig->hub().KillAt(lost, at);
      for (const StepEngine::Result& result : rig->SyncParameters()) {
        if (result.status.ok()) continue;
        EXPECT_EQ(result.outcome, StepOutcome::kNotApplied) << result.status;
        EXPECT_TRUE(result.plane_failed);
      }
      const absl::StatusOr<StepProgress> settled = SettleLedgers(*rig);
      ASSERT_TRUE(settled.ok()) << settled.status();
      EXPECT_EQ(settled->finished, 1u);
    }
  }
}

// Gradients of a step would be waited for by others: all must come to a synchronisation.
TEST(StepEngine_RefusalMeetsTheSynchronisationOfAddedGroups, AllGiveItUpAndMayTryAgain) {
  for (const Placement placement : kPlacements) {
    EngineRig::Options options;
    options.world_size = 3;
    options.placements = {placement};
    EngineRig rig(options);
    std::vector<GroupSpec> groups = rig.space().groups();
    groups.push_back(GroupSpec{{{"added", {3000}, DType::kFloat32, "cpu"}}, 1});
    rig.Grow(ParameterSpace(std::move(groups)));
    rig.OnEveryRank([&](Rank r) {
      const StepEngine::Result result =
          r == 0 ? rig.rank(r).engine->Refuse(errors::TrainerGone({0}, "process 7 has ended"))
                 : Sync(rig, r);
      EXPECT_TRUE(errors::IsTrainerGone(result.status)) << result.status;
      EXPECT_TRUE(result.refused);
    });
    ExpectAllOk(rig.SyncParameters());
    rig.GiveAllGradients();
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
    EXPECT_EQ(rig.DifferenceToOracle(), "");
  }
}

// Whoever refuses knows that nobody begins.
TEST(StepEngine_RankThatRefusesARefreshAndLosesTheOthers, IsNotInDoubt) {
  EngineRig rig(RefreshOptions(3, FakeHub::Mode::kImmediate, Placement::kReachable));
  ExpectAllOk(rig.SyncParameters());
  rig.hub().KillInWaitFor(1, rig.hub().OperationsStarted(1));
  std::vector<StepEngine::Result> results(3);
  rig.OnEveryRank([&](Rank r) {
    if (r != 1) {
      results[r] = Sync(rig, r);
      return;
    }
    results[r] = rig.rank(r).engine->SyncParameters({}, {}, absl::Seconds(20));
  });
  EXPECT_TRUE(results[1].plane_failed);
  EXPECT_EQ(results[1].outcome, StepOutcome::kNotApplied);
}

// Rank 0 must not change its values while others still copy them.
TEST(StepEngine_RankKilledInTheLastBarrierOfASynchronisation, IsMissedByRankZero) {
  EngineRig rig(RefreshOptions(2, FakeHub::Mode::kImmediate, Placement::kReachable));
  ExpectAllOk(rig.SyncParameters());
  const int64_t operations = rig.hub().OperationsStarted(1);
  ChangeRankZero(rig);
  rig.hub().KillAt(1, 2 * operations - 1);
  const std::vector<StepEngine::Result> results = rig.SyncParameters();
  EXPECT_EQ(results[0].outcome, StepOutcome::kTorn) << results[0].status;
  EXPECT_TRUE(HasRankZeros(rig, 1));
}

}  // namespace
}  // namespace optshard::testing
