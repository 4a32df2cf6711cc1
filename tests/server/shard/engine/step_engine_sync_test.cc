// The first synchronisation of the parameters.

#include <utility>
#include <vector>

#include "common/errors.h"
#include "gtest/gtest.h"
#include "server/shard/engine/step_engine.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {
namespace {

TEST(StepEngine_SyncParameters, GivesAllRanksTheValuesOfRankZero) {
  const std::vector<Placement> mixed = {Placement::kFlatRegions, Placement::kScattered};
  const std::vector<Placement> reachable = {Placement::kReachable};
  for (const auto& [policy, placements] : {std::pair(PartitionPolicy::kBalanced, mixed),
                                           std::pair(PartitionPolicy::kReplicated, mixed),
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
            p, OrderSensitiveValues(rig.space().parameter(p).elements(), 5000 + 10 * r + p));
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

}  // namespace
}  // namespace optshard::testing
