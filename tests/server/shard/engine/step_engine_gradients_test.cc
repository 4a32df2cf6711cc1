// Gradients that are missing, parameters and shards that are empty, and that a step leaves the
// gradients alone.

#include <map>
#include <utility>
#include <vector>

#include "common/gradient_mode.h"
#include "gtest/gtest.h"
#include "server/shard/engine/step_engine.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {
namespace {

TEST(StepEngine_GradientMissingOnSomeRanks_CountsAsZero, EqualOneProcessToTheBit) {
  for (const Placement placement :
       {Placement::kFlatRegions, Placement::kScattered, Placement::kReachable, Placement::kNodes}) {
    EngineRig::Options options;
    options.world_size = 3;
    options.placements = {placement};
    EngineRig rig(options);
    for (int step = 1; step <= 4; ++step) {
      rig.GiveGradients(
          [](StepNumber at, Rank rank, int parameter) { return (at + rank + parameter) % 3 != 0; });
      ExpectAllOk(rig.Step());
      rig.StepOracleAlong();
      ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
    }
  }
}

TEST(StepEngine_GradientMissingOnAllRanks_SkipsTheParameter, StepCountStays) {
  for (const GradientMode mode : {GradientMode::kAveraged, GradientMode::kReduce}) {
    EngineRig::Options options;
    options.world_size = 2;
    options.gradient_mode = mode;
    EngineRig rig(options);
    for (int step = 1; step <= 4; ++step) {
      // Parameters freeze and thaw.
      rig.GiveGradients([](StepNumber at, Rank, int parameter) {
        return (at + parameter) % 2 == 0 || parameter == 3;
      });
      ExpectAllOk(rig.Step());
      rig.StepOracleAlong();
      ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
    }
    EXPECT_EQ(rig.rank(0).store->step_count(0), 2);
    EXPECT_EQ(rig.rank(0).store->step_count(3), 4);
    EXPECT_EQ(rig.rank(0).engine->finished(), 4);
  }
}

TEST(StepEngine_NoGradientAnywhere_Skips, NothingChanges) {
  EngineRig::Options options;
  EngineRig rig(options);
  rig.GiveAllGradients();
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  rig.GiveGradients([](StepNumber, Rank, int) { return false; });
  const std::vector<StepEngine::Result> results = rig.Step();
  ExpectAllOk(results);
  EXPECT_TRUE(results[0].info.skipped);
  EXPECT_EQ(results[0].info.step, 1);
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

TEST(StepEngine_MoreRanksThanParameters, EmptyShardsTakePart) {
  GroupSpec group;
  ParameterSpec spec;
  spec.name = "only";
  spec.shape = {100};
  group.parameters = {spec};
  for (const PartitionPolicy policy : {PartitionPolicy::kGreedy, PartitionPolicy::kBalanced}) {
    EngineRig::Options options;
    options.world_size = 4;
    options.space = ParameterSpace({group});
    options.policy = policy;
    EngineRig rig(options);
    rig.GiveAllGradients();
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
    EXPECT_EQ(rig.DifferenceToOracle(), "");
    int empty = 0;
    for (Rank r = 0; r < 4; ++r) empty += rig.rank(r).store->state_bytes() == 0 ? 1 : 0;
    EXPECT_EQ(empty, 3);
  }
}

TEST(StepEngine_OnlyEmptyParameters, StepIsCounted) {
  GroupSpec group;
  ParameterSpec spec;
  spec.name = "empty";
  spec.shape = {0};
  group.parameters = {spec};
  EngineRig::Options options;
  options.space = ParameterSpace({group});
  EngineRig rig(options);
  rig.GiveAllGradients();
  const std::vector<StepEngine::Result> results = rig.Step();
  ExpectAllOk(results);
  EXPECT_EQ(results[0].info.step, 1);
  EXPECT_EQ(rig.rank(0).store->step_count(0), 1);
}

TEST(StepEngine_AnyPlacement, LeavesTheGradientsAlone) {
  for (const Placement placement :
       {Placement::kFlatRegions, Placement::kFlatUnvouched, Placement::kScattered,
        Placement::kReachable, Placement::kNodes}) {
    EngineRig::Options options;
    options.world_size = 3;
    options.placements = {placement};
    EngineRig rig(options);
    rig.GiveAllGradients();
    std::map<std::pair<Rank, int>, Values> before;
    for (Rank r = 0; r < 3; ++r) {
      for (int p = 0; p < rig.space().parameter_count(); ++p) {
        before[{r, p}] = rig.rank(r).replica->Gradient(p);
      }
    }
    ExpectAllOk(rig.Step());
    for (const auto& [key, values] : before) {
      EXPECT_EQ(BitDifference(values, rig.rank(key.first).replica->Gradient(key.second)), "")
          << NameOf(placement) << " rank " << key.first << " parameter " << key.second;
    }
  }
}

}  // namespace
}  // namespace optshard::testing
