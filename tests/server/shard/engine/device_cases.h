// What the tests of steps of replicas on devices go through, wherever the state is.
#ifndef OPTSHARD_TESTS_SERVER_SHARD_ENGINE_DEVICE_CASES_H_
#define OPTSHARD_TESTS_SERVER_SHARD_ENGINE_DEVICE_CASES_H_

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/gradient_mode.h"
#include "gtest/gtest.h"
#include "tests/server/shard/engine/engine_rig.h"

namespace optshard::testing {

// Ranks, and the rest of what the options have.
using DeviceCase = std::tuple<int, GradientMode, PartitionPolicy, Placement>;

inline auto AllDeviceCases() {
  return ::testing::Combine(::testing::Values(1, 3),
                            ::testing::Values(GradientMode::kAveraged, GradientMode::kReduce),
                            ::testing::Values(PartitionPolicy::kGreedy, PartitionPolicy::kBalanced,
                                              PartitionPolicy::kReplicated),
                            ::testing::Values(Placement::kFlatRegions, Placement::kScattered));
}

inline std::string NameOfCase(const ::testing::TestParamInfo<DeviceCase>& info) {
  const auto [ranks, gradients, policy, placement] = info.param;
  return absl::StrCat("Ranks", ranks, gradients == GradientMode::kAveraged ? "Averaged" : "Reduce",
                      policy == PartitionPolicy::kGreedy     ? "Greedy"
                      : policy == PartitionPolicy::kBalanced ? "Balanced"
                                                             : "Replicated",
                      "P", static_cast<int>(placement));
}

// Those of the case, with groups of all rules of its policy.
inline EngineRig::Options OptionsOf(const DeviceCase& given, EngineRig::Options options) {
  Placement placement;
  std::tie(options.world_size, options.gradient_mode, options.policy, placement) = given;
  options.placements = {placement};
  options.space = MixedGroups(RulesFor(options.policy));
  options.rules = RulesFor(options.policy);
  return options;
}

// Gradients that are missing on some ranks, or, where they are averaged, on all.
inline void GiveSomeGradients(EngineRig& rig) {
  const bool are_averaged = rig.options().gradient_mode == GradientMode::kAveraged;
  rig.GiveGradients([are_averaged](StepNumber number, Rank rank, int parameter) {
    const int of = are_averaged ? 0 : 2 * rank;
    return (number + static_cast<StepNumber>(parameter + of)) % 4 != 0;
  });
}

// Each with parameters of every type, of which the last one of the first group is large: it is read
// and updated in several windows.
inline std::vector<EngineRig::Options> EveryState(const EngineRig::Options& like) {
  std::vector<EngineRig::Options> all(6, like);
  all[1].state.format = StateFormat::kBFloat16;
  all[2].state.format = StateFormat::kInt8Dynamic;
  all[3].state.format = StateFormat::kInt8Companded;
  all[4].state.master_weights = true;
  all[4].state.publish_dtype = DType::kBFloat16;
  all[5].state.master_weights = true;
  all[5].state.master_weight_bits = 24;
  for (EngineRig::Options& options : all) {
    std::vector<GroupSpec> groups = MixedDTypeSpace().groups();
    ParameterSpec large;
    large.name = "large";
    large.shape = {100000};
    groups[0].parameters.push_back(large);
    options.space = ParameterSpace(groups);
    options.buckets = {1 << 20, 1 << 18};
  }
  return all;
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_SHARD_ENGINE_DEVICE_CASES_H_
