// What torch's golden files (torch_golden_test) do not show of Muon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "server/update/group_update.h"
#include "server/update/update_rule.h"
#include "tests/server/update/rule_cases.h"

namespace optshard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const UpdateRule& Muon() { return **RuleRegistry::Find("muon"); }

Hyperparameters With(absl::string_view name, HyperValue value) {
  Hyperparameters given;
  given.Set(name, std::move(value));
  return given;
}

std::string Error(absl::string_view name, HyperValue value) {
  return std::string(Muon().Validate(With(name, std::move(value))).status().message());
}

TEST(Muon, OptionsOutOfRange_SayWhatTheyMustBe) {
  EXPECT_EQ(Error("adjust_lr_fn", std::string("match_rms_adam")),
            "rule \"muon\": option \"adjust_lr_fn\" is \"match_rms_adam\"; it must be \"original\" "
            "or \"match_rms_adamw\"; did you mean \"match_rms_adamw\"?");
  EXPECT_THAT(Error("ns_steps", 100.0), HasSubstr("a whole number from 0 to 99"));
  EXPECT_THAT(Error("ns_coefficients", Numbers{1, 2}),
              HasSubstr("is a pair of numbers, [1, 2]; it must be 3 numbers: 3 finite numbers"));
  EXPECT_THAT(Error("eps", 0.0), HasSubstr("a finite number, > 0"));
}

OptimizerSpec SpecOf(std::vector<int64_t> shape) {
  ParameterSpec parameter;
  parameter.name = "fc.bias";
  parameter.shape = std::move(shape);
  OptimizerSpec spec;
  spec.space = ParameterSpace({{{}}, {{parameter}}});
  spec.rules = {{"adamw"}, {"muon"}};
  return spec;
}

TEST(Muon, ParametersThatAreNoMatrices_AreRefusedNamingTheWayOut) {
  EXPECT_TRUE(ValidateGroups(SpecOf({3, 4})).ok());
  EXPECT_TRUE(ValidateGroups(SpecOf({0, 4})).ok());
  for (const auto& shape : std::vector<std::vector<int64_t>>{{}, {10}, {8, 3, 3}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ValidateGroups(SpecOf(shape)).status()));
  }
  EXPECT_THAT(std::string(ValidateGroups(SpecOf({10})).status().message()),
              AllOf(HasSubstr("param group 1: parameter \"fc.bias\" of the shape [10]"),
                    HasSubstr("rule \"muon\" takes matrices"),
                    HasSubstr("another rule, such as \"adamw\"")));
  OptimizerSpec cut = SpecOf({3, 4});
  cut.policy = PartitionPolicy::kBalanced;
  EXPECT_THAT(std::string(ValidateGroups(cut).status().message()),
              HasSubstr("needs whole parameters"));
}

// The parameter after a step from `start` with the gradient 1 in each element.
double StepFrom(float start, const Hyperparameters& given, int64_t rows, int64_t columns) {
  const Hyperparameters group = *Muon().Validate(given);
  const std::vector<int64_t> shape = {rows, columns};
  AlignedFloats parameter(rows * columns, start), gradient(rows * columns, 1);
  AlignedFloats buffer(rows * columns);
  AlignedFloats workspace(Muon().WorkspaceBytes(shape, DType::kFloat32) / sizeof(float) + 1);
  SpanUpdate span;
  span.parameter = parameter.data();
  span.gradient = gradient.data();
  span.slots[0] = buffer.data();
  span.elements = rows * columns;
  span.shape = shape;
  span.workspace = workspace.data();
  Muon().Update(DriverKind::kSimd, Muon().Prepare(group, 1), span);
  EXPECT_FLOAT_EQ(buffer[0], 1 - static_cast<float>(group.Number("momentum")));
  return parameter[0];
}

double StepFromOnes(const Hyperparameters& given, int64_t rows, int64_t columns) {
  return StepFrom(1, given, rows, columns);
}

// Without iterations the direction is the gradient by its norm, which is 1/8 and exact.
TEST(Muon, WithoutIterations_StepsByTheNormAndTheShape) {
  Hyperparameters given = With("ns_steps", 0.0);
  given.Set("lr", 0.5);
  given.Set("weight_decay", 0.0);
  EXPECT_EQ(StepFromOnes(given, 16, 4), 1 - 0.5 * 2 / 8);  // sqrt(16 / 4)
  EXPECT_EQ(StepFromOnes(given, 4, 16), 1 - 0.5 / 8);
  given.Set("weight_decay", 0.25);
  EXPECT_EQ(StepFromOnes(given, 4, 16), 1 - 0.125 - 0.5 / 8);
  given.Set("weight_decay", 0.0);
  given.Set("adjust_lr_fn", std::string("match_rms_adamw"));
  EXPECT_FLOAT_EQ(StepFromOnes(given, 4, 16), 1 - 0.5 * 0.2 * 4 / 8);
  EXPECT_FLOAT_EQ(StepFromOnes(given, 16, 4), 1 - 0.5 * 0.2 * 4 / 8);
  // The product of lr and shape is rounded, not lr.
  given.Set("lr", 0.3);
  EXPECT_EQ(StepFrom(0, given, 4, 16), -static_cast<float>(0.3 * 0.2 * 4) / 8);
}

}  // namespace
}  // namespace optshard::testing
