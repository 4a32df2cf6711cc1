#include "common/optimizer_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace optshard {
namespace {

using ::testing::HasSubstr;

OptimizerSpec Spec() {
  OptimizerSpec spec;
  spec.world_size = 2;
  spec.space = ParameterSpace({GroupSpec{{{"weight", {8, 4}}, {"bias", {8}}}}});
  spec.rule = "adam";
  spec.hyperparameters.resize(1);
  return spec;
}

struct Change {
  const char* difference;  // nullptr: none
  std::function<void(OptimizerSpec&)> make;
};

TEST(OptimizerSpec, FirstDifference_EachFieldInTurn_NamesItWithBothSides) {
  const Change changes[] = {
      {nullptr, [](OptimizerSpec&) {}},
      {R"(world size: rank 0 has "2", rank 1 has "3")",
       [](OptimizerSpec& spec) { spec.world_size = 3; }},
      {R"(update rule: rank 0 has "adam", rank 1 has "sgd")",
       [](OptimizerSpec& spec) { spec.rule = "sgd"; }},
      {R"(gradient mode: rank 0 has "reduce", rank 1 has "averaged")",
       [](OptimizerSpec& spec) { spec.gradient_mode = GradientMode::kAveraged; }},
      {R"(partition policy: rank 0 has "greedy", rank 1 has "balanced")",
       [](OptimizerSpec& spec) { spec.policy = PartitionPolicy::kBalanced; }},
      {R"(buckets: rank 0 has "max_bytes=4194304 pack_below_bytes=262144", rank 1 has )"
       R"("max_bytes=4096 pack_below_bytes=262144")",
       [](OptimizerSpec& spec) { spec.buckets.max_bytes = 4096; }},
      {R"(buckets: rank 0 has "max_bytes=4194304 pack_below_bytes=262144", rank 1 has )"
       R"("max_bytes=4194304 pack_below_bytes=1")",
       [](OptimizerSpec& spec) { spec.buckets.pack_below_bytes = 1; }},
      {R"(share_parameters: rank 0 has "false", rank 1 has "true")",
       [](OptimizerSpec& spec) { spec.share_parameters = true; }},
      {R"(parameter 1 (group 0): rank 0 has "bias" float32 [8], rank 1 has "bias" float32 [9])",
       [](OptimizerSpec& spec) {
         spec.space = ParameterSpace({GroupSpec{{{"weight", {8, 4}}, {"bias", {9}}}}});
       }},
      // Schedulers change them; steps compare them.
      {nullptr, [](OptimizerSpec& spec) { spec.hyperparameters[0].Set("lr", 0.5); }},
  };
  for (const Change& change : changes) {
    OptimizerSpec other = Spec();
    change.make(other);
    const absl::optional<std::string> difference =
        FirstDifference(Spec(), "rank 0", other, "rank 1");
    if (change.difference == nullptr) {
      EXPECT_EQ(difference, absl::nullopt) << *difference;
    } else {
      EXPECT_EQ(difference, change.difference);
    }
  }
}

TEST(OptimizerSpec, Validate_ThatOfATrainer_IsOk) {
  EXPECT_EQ(Spec().Validate(), absl::OkStatus());
}

TEST(OptimizerSpec, Validate_BadField_NamesItWithItsValue) {
  const Change changes[] = {
      {"the world size is 0, expected at least 1",
       [](OptimizerSpec& spec) { spec.world_size = 0; }},
      {"the update rule's name is empty", [](OptimizerSpec& spec) { spec.rule = ""; }},
      {"hyperparameters of 3 groups were given, expected those of 1",
       [](OptimizerSpec& spec) { spec.hyperparameters.resize(3); }},
      {"buckets.max_bytes is 63, expected at least 64",
       [](OptimizerSpec& spec) { spec.buckets.max_bytes = 63; }},
      {"share_parameters does not go with the partition policy \"replicated\"",
       [](OptimizerSpec& spec) {
         spec.share_parameters = true;
         spec.policy = PartitionPolicy::kReplicated;
       }},
      {"parameter 0",
       [](OptimizerSpec& spec) {
         spec.space = ParameterSpace({GroupSpec{{{"", {8}}}}});
       }},
  };
  for (const Change& change : changes) {
    OptimizerSpec spec = Spec();
    change.make(spec);
    const absl::Status status = spec.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << change.difference;
    EXPECT_THAT(std::string(status.message()), HasSubstr(change.difference));
  }
}

}  // namespace
}  // namespace optshard
