// Generations with added groups: what was there goes on to the bit, what is new begins.
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/engine/step_engine.h"
#include "server/shard/inspection/live_shard_view.h"
#include "server/shard/inspection/step_board.h"
#include "server/shard/owner_generation.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;

// Parameters of every kind, in two groups that came by one more admission.
ParameterSpace WithAddedGroups(const ParameterSpace& space) {
  std::vector<GroupSpec> groups = space.groups();
  const int admission = space.admission_count();
  const ParameterSpace added = MixedSpace();
  for (GroupSpec group : added.groups()) {
    for (ParameterSpec& parameter : group.parameters) {
      absl::StrAppend(&parameter.name, ".added", admission);
    }
    group.admission = admission;
    groups.push_back(std::move(group));
  }
  return ParameterSpace(std::move(groups));
}

void ExpectStepsOfOneProcess(EngineRig& rig, int steps) {
  for (int step = 1; step <= steps; ++step) {
    rig.GiveAllGradients();
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
    ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
  }
}

struct GrowthCase {
  const char* name;
  int world_size;
  PartitionPolicy policy;
  std::vector<Placement> placements;
  GradientMode mode = GradientMode::kReduce;
  bool master_weights = false;
  StateFormat format = StateFormat::kFloat32;
};

class StepEngineGrowthTest : public ::testing::TestWithParam<GrowthCase> {
 protected:
  static EngineRig::Options Options() {
    const GrowthCase& row = GetParam();
    EngineRig::Options options;
    options.world_size = row.world_size;
    options.policy = row.policy;
    options.placements = row.placements;
    options.gradient_mode = row.mode;
    options.state.master_weights = row.master_weights;
    options.state.format = row.format;
    if (row.master_weights) options.space = MixedDTypeSpace();
    // Rules with one slot, with two, and with one that is one number for the whole parameter.
    options.rules = {{"adam"}, {"lion"}, {"nadam"}};
    if (row.format != StateFormat::kFloat32) options.rules = {{"adam"}, {"lion"}};
    return options;
  }
};

TEST_P(StepEngineGrowthTest, GroupsAddedTwice_StateThatWasThereStays_AndStepsEqualOneProcess) {
  EngineRig rig(Options());
  if (GetParam().master_weights) ExpectAllOk(rig.SyncParameters());
  ExpectStepsOfOneProcess(rig, 2);
  for (int times = 0; times < 2; ++times) {
    ASSERT_NO_FATAL_FAILURE(rig.Grow(WithAddedGroups(rig.space())));
    ExpectAllOk(rig.SyncParameters());
    ASSERT_EQ(rig.DifferenceToOracle(), "") << "before a step of the next generation";
    ASSERT_NO_FATAL_FAILURE(ExpectStepsOfOneProcess(rig, 2));
  }
  EXPECT_EQ(rig.rank(0).engine->finished(), 6u);
}

INSTANTIATE_TEST_SUITE_P(
    All, StepEngineGrowthTest,
    ::testing::Values(
        GrowthCase{"OneRank", 1, PartitionPolicy::kGreedy, {Placement::kFlatRegions}},
        GrowthCase{"Messages", 3, PartitionPolicy::kGreedy, {Placement::kFlatRegions}},
        GrowthCase{"Cut", 3, PartitionPolicy::kBalanced, {Placement::kScattered}},
        GrowthCase{"OnePass", 3, PartitionPolicy::kBalanced, {Placement::kReachable}},
        GrowthCase{"Nodes", 4, PartitionPolicy::kBalanced, {Placement::kNodes}},
        GrowthCase{"OneCopy", 2, PartitionPolicy::kGreedyInOrder, {Placement::kOneCopy}},
        GrowthCase{"Replicated",
                   2,
                   PartitionPolicy::kReplicated,
                   {Placement::kFlatRegions},
                   GradientMode::kAveraged},
        GrowthCase{"Masters",
                   3,
                   PartitionPolicy::kBalanced,
                   {Placement::kFlatRegions},
                   GradientMode::kReduce,
                   true},
        GrowthCase{"EightBits",
                   2,
                   PartitionPolicy::kBalanced,
                   {Placement::kReachable},
                   GradientMode::kReduce,
                   false,
                   StateFormat::kInt8Dynamic}),
    [](const auto& info) { return info.param.name; });

TEST(StepEngineGrowth, StepBeforeTheSynchronisation_IsRefusedAndChangesNothing) {
  EngineRig rig({});
  ExpectStepsOfOneProcess(rig, 1);
  rig.Grow(WithAddedGroups(rig.space()));
  rig.GiveAllGradients();
  for (const StepEngine::Result& result : rig.Step()) {
    EXPECT_TRUE(result.refused);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("added parameters"));
  }
  ExpectAllOk(rig.SyncParameters());
  EXPECT_EQ(rig.DifferenceToOracle(), "");
  ExpectAllOk(rig.Step());
  rig.StepOracleAlong();
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

TEST(StepEngineGrowth, NextGenerationThatIsGivenUp_LeavesTheRunningOneAsItWas) {
  EngineRig rig({});
  ExpectStepsOfOneProcess(rig, 2);
  for (Rank r = 0; r < rig.options().world_size; ++r) {
    ASSERT_EQ(rig.BuildInVain(r, WithAddedGroups(rig.space())), absl::OkStatus());
  }
  EXPECT_EQ(rig.DifferenceToOracle(), "");
  ExpectStepsOfOneProcess(rig, 2);
}

LiveShardView::Shown ShownOf(EngineRig& rig, Rank rank) {
  const OwnerGeneration& generation = *rig.rank(rank).generation;
  return {generation.shape(), generation.groups(), generation.store(), generation.snapshots(),
          generation.snapshot_memory()};
}

// It reads all the time, while ranks step, grow and step on.
TEST(StepEngineGrowth, ReaderOfTheView_IsGivenTheValuesOfOneStep_AndSeesTheNextGeneration) {
  EngineRig::Options options;
  options.placements = {Placement::kReachable};
  EngineRig rig(options);
  StepBoard board(rig.rank(0).hyperparameters);
  LiveShardView view({{"job", "optimizer", 0, 1}, &board, rig.rank(0).timeline.get()},
                     ShownOf(rig, 0));
  const int parameter = rig.shape()->slices(0)[0].parameter;
  const int64_t elements = rig.space().parameter(parameter).elements();
  std::atomic<bool> done{false};
  std::thread reader([&] {
    std::map<StepNumber, std::vector<double>> known;
    std::vector<double> values(elements);
    // Also once after the last step.
    for (bool last = false; !last;) {
      last = done;
      const absl::StatusOr<SlotRead> read =
          view.ReadSlot(parameter, "exp_avg", 0, absl::MakeSpan(values));
      ASSERT_TRUE(read.ok()) << read.status();
      const auto [entry, is_new] = known.try_emplace(read->step, values);
      ASSERT_EQ(entry->second, values) << "of step " << read->step;
    }
    EXPECT_EQ(known.rbegin()->first, 30u);
  });
  ExpectStepsOfOneProcess(rig, 15);
  EXPECT_EQ(view.Describe().generation, 7u);
  rig.Grow(WithAddedGroups(rig.space()));
  view.Show(ShownOf(rig, 0));
  board.SetHyperparameters(rig.rank(0).hyperparameters);
  ExpectAllOk(rig.SyncParameters());
  ExpectStepsOfOneProcess(rig, 15);
  done = true;
  reader.join();
  EXPECT_EQ(view.Describe().generation, 8u);
  EXPECT_EQ(view.Describe().groups.size(), 4u);
  EXPECT_EQ(view.Describe().state_bytes, rig.rank(0).store->state_bytes());
  EXPECT_EQ(view.Slices(0, 1000).size(), rig.shape()->slices(0).size());
}

}  // namespace
}  // namespace optshard::testing
