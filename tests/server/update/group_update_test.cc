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

// One that cannot be cut.
class WholeRule final : public UpdateRule {
 public:
  WholeRule() {
    spec_.name = "whole";
    spec_.element_wise = false;
  }
  const RuleSpec& spec() const override { return spec_; }
  void Update(DriverKind, const Coefficients&, const SpanUpdate&) const override {}

 protected:
  void SetCoefficients(const Hyperparameters&, StepNumber, Coefficients*) const override {}

 private:
  RuleSpec spec_;
};
const bool registered [[maybe_unused]] = RuleRegistry::Register(new WholeRule);

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
