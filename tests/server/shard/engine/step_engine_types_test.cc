// Steps whose replicas hold values of other types than what is computed or summed in: they equal
// one process's.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/gradient_mode.h"
#include "gtest/gtest.h"
#include "server/shard/engine/step_engine.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {
namespace {

constexpr int kEdited = 3;  // a large float32 parameter

struct Way {
  int world_size;
  PartitionPolicy policy;
  GradientMode mode;
  std::vector<Placement> placements;
};

const std::vector<Way>& Ways() {
  static const std::vector<Way> ways = {
      {1, PartitionPolicy::kGreedy, GradientMode::kReduce, {Placement::kScattered}},
      {2, PartitionPolicy::kReplicated, GradientMode::kReduce, {Placement::kFlatRegions}},
      {2, PartitionPolicy::kReplicated, GradientMode::kReduce, {Placement::kReachable}},
      {3, PartitionPolicy::kBalanced, GradientMode::kReduce, {Placement::kReachable}},
      {3, PartitionPolicy::kGreedy, GradientMode::kReduce, {Placement::kOneCopy}},
      {4, PartitionPolicy::kBalanced, GradientMode::kReduce, {Placement::kNodes}},
      {3, PartitionPolicy::kBalanced, GradientMode::kAveraged, {Placement::kFlatRegions}},
      {2,
       PartitionPolicy::kGreedy,
       GradientMode::kReduce,
       {Placement::kScattered, Placement::kFlatUnvouched}},
  };
  return ways;
}

// Of every rule, over parameters of every dtype.
EngineRig::Options OptionsFor(const Way& way) {
  EngineRig::Options options;
  options.world_size = way.world_size;
  options.policy = way.policy;
  options.gradient_mode = way.mode;
  options.placements = way.placements;
  options.rules = RulesFor(options.policy);
  options.space = WithEveryDType(MixedGroups(options.rules));
  return options;
}

// Gradients are missing here and there. One rank edits a parameter on the way, and all refresh.
void ExpectStepsOfOneProcess(const EngineRig::Options& options) {
  SCOPED_TRACE(absl::StrCat(options.world_size, " ranks, ", NameOf(options.policy), ", ",
                            NameOf(options.placements[0])));
  EngineRig rig(options);
  ExpectAllOk(rig.SyncParameters());
  for (int step = 1; step <= 4; ++step) {
    if (step == 3) {
      const Values values = OrderSensitiveValues(rig.space().parameter(kEdited), 4711);
      rig.rank(0).replica->SetParameter(kEdited, values);
      rig.oracle().SetParameter(kEdited, values);
      ExpectAllOk(rig.SyncParameters());
    }
    rig.GiveGradients([&](StepNumber number, Rank rank, int parameter) {
      const auto source = options.gradient_mode == GradientMode::kAveraged ? 0 : rank;
      return (number + static_cast<StepNumber>(source + parameter)) % 3 != 0;
    });
    ExpectAllOk(rig.Step());
    rig.StepOracleAlong();
    ASSERT_EQ(rig.DifferenceToOracle(), "") << "after step " << step;
  }
}

TEST(StepEngineBits_RoundedReplicas, EqualOneProcessToTheBit) {
  for (const DType publish_dtype : {DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(std::string(NameOf(publish_dtype)));
    for (const Way& way : Ways()) {
      EngineRig::Options options = OptionsFor(way);
      options.state.publish_dtype = publish_dtype;
      ExpectStepsOfOneProcess(options);
    }
  }
}

TEST(StepEngineBits_RoundedReplicas, TravelInHalfTheBytes) {
  int64_t bytes[2] = {};
  for (const bool rounds : {false, true}) {
    EngineRig::Options options;
    if (rounds) options.state.publish_dtype = DType::kBFloat16;
    EngineRig rig(options);
    ExpectAllOk(rig.SyncParameters());
    const auto published = [&] {
      return rig.hub().PublishedBytes(0) + rig.hub().PublishedBytes(1);
    };
    const int64_t before = published();
    rig.GiveAllGradients();
    ExpectAllOk(rig.Step());
    bytes[rounds ? 1 : 0] = published() - before;
  }
  EXPECT_GT(bytes[1], 0);
  EXPECT_EQ(bytes[0], 2 * bytes[1]);
}

// 16-bit parameters with float32 gradients, with masters of every kind.
TEST(StepEngineBits_MainGradients, EqualOneProcessToTheBit) {
  for (const int master_bits : {0, 24, 32}) {
    SCOPED_TRACE(absl::StrCat(master_bits, " bits of masters"));
    for (const Way& way : Ways()) {
      EngineRig::Options options = OptionsFor(way);
      std::vector<GroupSpec> groups = options.space.groups();
      for (GroupSpec& group : groups) {
        for (ParameterSpec& parameter : group.parameters) {
          parameter.main_gradient = SizeOf(parameter.dtype) == 2;
        }
      }
      options.space = ParameterSpace(std::move(groups));
      options.state.master_weights = master_bits != 0;
      if (master_bits != 0) options.state.master_weight_bits = master_bits;
      ExpectStepsOfOneProcess(options);
    }
  }
}

}  // namespace
}  // namespace optshard::testing
