#include "common/optimizer_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/request_limits.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

OptimizerSpec Spec() {
  OptimizerSpec spec;
  spec.world_size = 2;
  spec.space = ParameterSpace({GroupSpec{{{"weight", {8, 4}}, {"bias", {8}}}}});
  spec.rules = {{"adam"}};
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
      {R"(update rule of param group 0: rank 0 has "adam", rank 1 has "sgd")",
       [](OptimizerSpec& spec) { spec.rules[0].name = "sgd"; }},
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
      {R"(master_weights: rank 0 has "false", rank 1 has "true")",
       [](OptimizerSpec& spec) { spec.state.master_weights = true; }},
      {R"(master_weight_bits: rank 0 has "32", rank 1 has "24")",
       [](OptimizerSpec& spec) { spec.state.master_weight_bits = 24; }},
      {R"(state_dtype: rank 0 has "float32", rank 1 has "bfloat16")",
       [](OptimizerSpec& spec) { spec.state.format = StateFormat::kBFloat16; }},
      {R"(publish_dtype: rank 0 has "float32", rank 1 has "float16")",
       [](OptimizerSpec& spec) { spec.state.publish_dtype = DType::kFloat16; }},
      {R"(share_parameters: rank 0 has "false", rank 1 has "true")",
       [](OptimizerSpec& spec) { spec.share_parameters = true; }},
      {R"(parameter 1 (group 0): rank 0 has "bias" float32 [8], rank 1 has "bias" float32 [9])",
       [](OptimizerSpec& spec) {
         spec.space = ParameterSpace({GroupSpec{{{"weight", {8, 4}}, {"bias", {9}}}}});
       }},
      // Schedulers change them; steps compare them.
      {nullptr, [](OptimizerSpec& spec) { spec.rules[0].hyperparameters.Set("lr", 0.5); }},
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
    EXPECT_EQ(other.Digest() == Spec().Digest(), change.difference == nullptr)
        << difference.value_or("none");
  }
}

TEST(OptimizerSpec, FirstDifference_RuleOfOneGroup_NamesTheGroup) {
  OptimizerSpec spec = Spec();
  spec.space = ParameterSpace({GroupSpec{{{"weight", {8, 4}}}}, GroupSpec{{{"bias", {8}}}}});
  spec.rules = {{"adam"}, {"sgd"}};
  OptimizerSpec other = spec;
  other.rules[1].name = "lion";
  EXPECT_EQ(FirstDifference(spec, "rank 0", other, "rank 1"),
            R"(update rule of param group 1: rank 0 has "sgd", rank 1 has "lion")");
}

TEST(OptimizerSpec, FirstDifference_AnotherNumberOfGroups_ShowsTheParameter) {
  OptimizerSpec other = Spec();
  other.space = ParameterSpace({GroupSpec{{{"weight", {8, 4}}}}, GroupSpec{{{"bias", {8}}}}});
  other.rules = {{"adam"}, {"sgd"}};
  const absl::optional<std::string> difference = FirstDifference(Spec(), "rank 0", other, "rank 1");
  ASSERT_TRUE(difference.has_value());
  EXPECT_THAT(*difference, HasSubstr("parameter 1"));
}

TEST(RulesText, GroupsOfSeveralRules_NamesEachOnce) {
  EXPECT_EQ(RulesText({{"adam"}, {"adam"}}), "adam");
  EXPECT_EQ(RulesText({{"muon"}, {"adamw"}, {"muon"}}), "muon+adamw");
  std::vector<GroupRule> many;
  for (int g = 0; g < 12; ++g) many.push_back({std::string(1, static_cast<char>('a' + g))});
  EXPECT_EQ(RulesText(many), "a+b+c+d+e+f+g+h+...");
}

TEST(OptimizerSpec, Validate_ThatOfATrainer_IsOk) {
  EXPECT_EQ(Spec().Validate(), absl::OkStatus());
}

TEST(OptimizerSpec, Validate_BadField_NamesItWithItsValue) {
  const Change changes[] = {
      {"the world size is 0, expected at least 1",
       [](OptimizerSpec& spec) { spec.world_size = 0; }},
      {"param group 0: the update rule's name is empty",
       [](OptimizerSpec& spec) { spec.rules[0].name = ""; }},
      {"the update rules of 3 param groups were given, expected those of 1",
       [](OptimizerSpec& spec) { spec.rules.resize(3); }},
      {"buckets.max_bytes is 63, expected at least 64",
       [](OptimizerSpec& spec) { spec.buckets.max_bytes = 63; }},
      {"share_parameters does not go with the partition policy \"replicated\"",
       [](OptimizerSpec& spec) {
         spec.share_parameters = true;
         spec.policy = PartitionPolicy::kReplicated;
       }},
      {"master_weights is true, but no parameter is bfloat16 or float16",
       [](OptimizerSpec& spec) { spec.state.master_weights = true; }},
      {"master_weight_bits is 24 and master_weights is false, expected 32, or 24 where",
       [](OptimizerSpec& spec) { spec.state.master_weight_bits = 24; }},
      {"master_weight_bits is 16 and master_weights is true, expected 32, or 24 where",
       [](OptimizerSpec& spec) {
         spec.state.master_weights = true;
         spec.state.master_weight_bits = 16;
       }},
      {R"(publish_dtype is "float64", expected one of "float32", "bfloat16", "float16")",
       [](OptimizerSpec& spec) { spec.state.publish_dtype = DType::kFloat64; }},
      {R"(publish_dtype is "bfloat16", but no parameter is float32, and only those are rounded)",
       [](OptimizerSpec& spec) {
         spec.state.publish_dtype = DType::kBFloat16;
         spec.space = ParameterSpace(
             {GroupSpec{{{"weight", {8}, DType::kFloat64}, {"bias", {8}, DType::kFloat16}}}});
       }},
      {R"(state_dtype is "float64", expected one of "float32", "bfloat16", "int8_dynamic", )"
       R"("int8_companded")",
       [](OptimizerSpec& spec) { spec.state.format = StateFormat::kFloat64; }},
      {R"(buckets.max_bytes is 512, expected at least 1024 with state_dtype "int8_dynamic", whose )"
       "blocks no bucket may cut; give larger buckets",
       [](OptimizerSpec& spec) {
         spec.state.format = StateFormat::kInt8Dynamic;
         spec.buckets.max_bytes = 512;
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

// `count` parameters of one element.
ParameterSpace Scalars(int count) {
  GroupSpec group;
  group.parameters.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) group.parameters[i].name = absl::StrCat(i);
  return ParameterSpace({group});
}

ParameterSpace One(const ParameterSpec& parameter) {
  return ParameterSpace({GroupSpec{{parameter}}});
}

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

// Each would cost memory or minutes if something were computed from it.
TEST(OptimizerSpec, Validate_BeyondALimit_NamesWhatActualAndAllowed) {
  const Change changes[] = {
      {"the world size is 2147483647, expected at most 65536",
       [](OptimizerSpec& spec) { spec.world_size = std::numeric_limits<int>::max(); }},
      {"param group 0: the update rule's name has 1000000 bytes, expected at most 256",
       [](OptimizerSpec& spec) { spec.rules[0].name = std::string(1000000, 'a'); }},
      {"the number of param groups is 16385, expected at most 16384",
       [](OptimizerSpec& spec) {
         spec.space = ParameterSpace(std::vector<GroupSpec>(kMaxGroups + 1));
         spec.rules.resize(kMaxGroups + 1);
       }},
      {"the number of parameters is 262145, expected at most 262144",
       [](OptimizerSpec& spec) { spec.space = Scalars(kMaxParameters + 1); }},
      {"parameter 0 (group 0): its name has 1025 bytes, expected at most 1024",
       [](OptimizerSpec& spec) {
         spec.space = One({std::string(1025, 'a'), {1}});
       }},
      {"parameter 0 (group 0): the name of its device has 257 bytes, expected at most 256",
       [](OptimizerSpec& spec) {
         spec.space = One({"a", {1}, DType::kFloat32, std::string(257, 'd')});
       }},
      {"parameter 0 (group 0): the number of its dimensions is 65, expected at most 64",
       [](OptimizerSpec& spec) {
         spec.space = One({"a", std::vector<int64_t>(65, 1)});
       }},
      {"parameter 64 (group 0): the number of devices up to it is 65, expected at most 64",
       [](OptimizerSpec& spec) {
         GroupSpec group;
         for (int i = 0; i < 65; ++i) {
           group.parameters.push_back(
               {absl::StrCat(i), {1}, DType::kFloat32, absl::StrCat("device:", i)});
         }
         spec.space = ParameterSpace({group});
       }},
      {"brings all parameters together to more than",
       [](OptimizerSpec& spec) {
         spec.space = One({"a", {kHuge, kHuge}});
       }},
      {"world size 65536 times 4097 parameters is 268500992, expected at most 268435456",
       [](OptimizerSpec& spec) {
         spec.world_size = kMaxWorldSize;
         spec.space = Scalars(4097);
       }},
      {"policy \"greedy\" cut 1125899906842624 bytes of parameters is 35184372088833, expected at "
       "most 4194304",
       [](OptimizerSpec& spec) {
         spec.space = One({"a", {int64_t{1} << 48}});
         spec.buckets.max_bytes = 64;
       }},
      {"policy \"replicated\" cut 4096 bytes of parameters is 67108864, expected at most 4194304",
       [](OptimizerSpec& spec) {
         spec.world_size = kMaxWorldSize;
         spec.policy = PartitionPolicy::kReplicated;
         spec.space = Scalars(1024);
       }},
      {"buckets.pack_below_bytes is -1, expected at least 0",
       [](OptimizerSpec& spec) { spec.buckets.pack_below_bytes = -1; }},
      {"param group 0: the number of hyperparameters is 65, expected at most 64",
       [](OptimizerSpec& spec) {
         for (int i = 0; i < 65; ++i) spec.rules[0].hyperparameters.Set(absl::StrCat(i), 1.0);
       }},
      {"param group 0: the name of a hyperparameter has 257 bytes, expected at most 256",
       [](OptimizerSpec& spec) { spec.rules[0].hyperparameters.Set(std::string(257, 'a'), 1.0); }},
  };
  for (const Change& change : changes) {
    OptimizerSpec spec = Spec();
    change.make(spec);
    const absl::Status status = spec.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << change.difference;
    EXPECT_THAT(std::string(status.message()), HasSubstr(change.difference));
    EXPECT_LT(status.message().size(), 1000u);
  }
}

TEST(OptimizerSpec, Validate_AtTheLimits_IsOk) {
  OptimizerSpec spec = Spec();
  spec.world_size = kMaxWorldSize;
  EXPECT_EQ(spec.Validate(), absl::OkStatus());
  spec.world_size = static_cast<int>(kMaxRanksTimesParameters / kMaxParameters);
  spec.space = Scalars(kMaxParameters);
  EXPECT_EQ(spec.Validate(), absl::OkStatus());
}

}  // namespace
}  // namespace optshard
