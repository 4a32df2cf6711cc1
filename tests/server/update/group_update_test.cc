#include "server/update/group_update.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

Hyperparameters Lr(double lr) {
  Hyperparameters values;
  values.Set("lr", lr);
  return values;
}

OptimizerSpec SpecOf(std::vector<GroupRule> rules) {
  OptimizerSpec spec;
  spec.rules = std::move(rules);
  return spec;
}

// Only its declaration is asked.
class ToyRule final : public UpdateRule {
 public:
  explicit ToyRule(RuleSpec spec) : spec_(std::move(spec)) {}
  const RuleSpec& spec() const override { return spec_; }
  void Update(DriverKind, const Coefficients&, const SpanUpdate&) const override {}

 protected:
  void SetCoefficients(const Hyperparameters&, StepNumber, Coefficients*) const override {}

 private:
  const RuleSpec spec_;
};

// One that cannot be cut.
RuleSpec Whole() {
  RuleSpec spec;
  spec.name = "whole";
  spec.element_wise = false;
  return spec;
}
const bool registered_whole [[maybe_unused]] = RuleRegistry::Register(new ToyRule(Whole()));

RuleSpec OfTwoTypes() {
  RuleSpec spec;
  spec.name = "two_types";
  spec.dtypes = {DType::kFloat32, DType::kBFloat16};
  return spec;
}
const bool registered_two [[maybe_unused]] = RuleRegistry::Register(new ToyRule(OfTwoTypes()));

TEST(ValidateGroups_GoodGroups_ComeBackInOrder, WithTheirRulesDefaults) {
  const auto groups = ValidateGroups(SpecOf({{"adam", Lr(0.5)}, {"sgd", Lr(0.25)}}));
  ASSERT_TRUE(groups.ok()) << groups.status();
  ASSERT_EQ(groups->size(), 2u);
  const UpdateRule* rules[] = {*RuleRegistry::Find("adam"), *RuleRegistry::Find("sgd")};
  EXPECT_EQ((*groups)[0].rule, rules[0]);
  EXPECT_EQ((*groups)[1].rule, rules[1]);
  const std::vector<Hyperparameters> expected = {*rules[0]->Validate(Lr(0.5)),
                                                 *rules[1]->Validate(Lr(0.25))};
  EXPECT_EQ(HyperparametersOf(*groups), expected);
  EXPECT_EQ(SlotsOf(*groups)[0].size(), 2u);
  EXPECT_EQ(SlotsOf(*groups)[1].size(), 0u);
}

TEST(ValidateGroups_MainGradientsOfARuleForSparseOnes, AreRefusedNamingTheParameter) {
  GroupSpec group;
  ParameterSpec parameter;
  parameter.name = "words.weight";
  parameter.shape = {300, 5};
  parameter.dtype = DType::kBFloat16;
  group.parameters = {parameter};
  OptimizerSpec spec = SpecOf({{"sparse_adam"}});
  spec.space = ParameterSpace({group});
  EXPECT_TRUE(ValidateGroups(spec).ok());
  group.parameters[0].main_gradient = true;
  spec.space = ParameterSpace({group});
  EXPECT_THAT(std::string(ValidateGroups(spec).status().message()),
              HasSubstr("param group 0: \"sparse_adam\" takes sparse gradients only, so that "
                        "main_gradients cannot be had with it (parameter \"words.weight\" is "
                        "bfloat16)"));
}

TEST(ValidateGroups_TypeThatTheRuleDoesNotTake, IsRefusedNamingTheParameterAndTheWayOut) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    GroupSpec group;
    ParameterSpec parameter;
    parameter.name = "words.weight";
    parameter.shape = {300, 5};
    group.parameters = {parameter, parameter};
    group.parameters[0].name = "first";
    group.parameters[1].dtype = dtype;
    OptimizerSpec spec = SpecOf({{"two_types"}});
    spec.space = ParameterSpace({group});
    const absl::Status status = ValidateGroups(spec).status();
    if (dtype == DType::kFloat32 || dtype == DType::kBFloat16) {
      EXPECT_TRUE(status.ok()) << status;
    } else {
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_EQ(std::string(status.message()),
                "param group 0: parameter \"words.weight\" of the type " +
                    std::string(NameOf(dtype)) +
                    ": rule \"two_types\" takes parameters of float32, bfloat16 only; convert the "
                    "parameter with to(), or put it into a param group with another one of the "
                    "rules of docs/rules.md");
    }
    spec.rules = {{"adam"}};
    EXPECT_TRUE(ValidateGroups(spec).ok());
  }
}

TEST(ValidateGroups_BadGroup_IsRefused, NamingIt) {
  const struct {
    GroupRule group;
    std::string text;
  } cases[] = {
      {{"adam", Lr(-2)}, "param group 1: rule \"adam\": option \"lr\" is -2"},
      {{"adamant"}, "param group 1: no update rule \"adamant\""},
      // An option of the other group's rule.
      {{"sgd", *RuleRegistry::Find("adam").value()->Validate({})}, "param group 1: rule \"sgd\""},
  };
  for (const auto& each : cases) {
    const absl::Status status = ValidateGroups(SpecOf({{"adam"}, each.group})).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(each.text));
  }
}

TEST(ValidateGroups_RuleOfWholeParameters_IsRefusedWhereTheyAreCut, NamingGroupAndRule) {
  for (const std::string rule : {"whole", "adafactor", "lamb"}) {
    OptimizerSpec spec = SpecOf({{"adam"}, {rule}});
    for (const PartitionPolicy policy : {PartitionPolicy::kGreedy, PartitionPolicy::kGreedyInOrder,
                                         PartitionPolicy::kReplicated}) {
      spec.policy = policy;
      EXPECT_TRUE(ValidateGroups(spec).ok()) << NameOf(policy);
    }
    spec.policy = PartitionPolicy::kBalanced;
    const absl::Status status = ValidateGroups(spec).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("param group 1: the rule \"" + rule +
                          "\" needs whole parameters, which the partition policy \"balanced\" "
                          "cuts; use \"greedy\""));
  }
}

}  // namespace
}  // namespace optshard
