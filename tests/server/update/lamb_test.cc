// What LAMB does at the edges; torch_golden_test.cc compares it with its paper.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "server/update/update_rule.h"

namespace optshard::testing {
namespace {

struct LambRun {
  explicit LambRun(const Hyperparameters& given, std::vector<float> start)
      : group(*rule.Validate(given)),
        parameter(std::move(start)),
        shape{static_cast<int64_t>(parameter.size())},
        exp_avg(parameter.size()),
        exp_avg_sq(parameter.size()),
        workspace(rule.WorkspaceBytes(shape, DType::kFloat32) / sizeof(float)) {}

  void Step(int step, const std::vector<float>& gradient) {
    SpanUpdate span;
    span.parameter = parameter.data();
    span.gradient = gradient.data();
    span.slots = {exp_avg.data(), exp_avg_sq.data()};
    span.elements = shape[0];
    span.shape = shape;
    span.workspace = workspace.data();
    rule.Update(DriverKind::kSimd, rule.Prepare(group, step), span);
  }

  const UpdateRule& rule = **RuleRegistry::Find("lamb");
  const Hyperparameters group;
  std::vector<float> parameter;
  const std::vector<int64_t> shape;
  std::vector<float> exp_avg, exp_avg_sq, workspace;
};

// Parameters of zeros have no norm to step by, and neither have directions.
TEST(Lamb, WithoutANorm_StepsByTheLearningRate) {
  Hyperparameters given;
  given.Set("lr", 0.25);
  given.Set("weight_decay", 0.0);
  given.Set("eps", 0.0);
  LambRun zeros(given, {0, 0, 0});
  zeros.Step(1, {2, -2, 4});
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(zeros.parameter[i], i == 1 ? 0.25 : -0.25, 1e-6);
  given.Set("eps", 1e-6);
  LambRun still(given, {1, 2, 3});
  still.Step(1, {0, 0, 0});
  EXPECT_EQ(still.parameter, (std::vector<float>{1, 2, 3}));
}

TEST(Lamb, AlwaysAdaptOff_LeavesGroupsWithoutDecayUnscaled) {
  Hyperparameters given;
  given.Set("lr", 0.25);
  given.Set("eps", 0.0);
  given.Set("weight_decay", 0.0);
  given.Set("always_adapt", false);
  LambRun run(given, {8, 8});
  run.Step(1, {1, -1});
  EXPECT_EQ(run.parameter, (std::vector<float>{7.75f, 8.25f}));
  given.Set("always_adapt", true);
  LambRun scaled(given, {8, 8});
  scaled.Step(1, {1, -1});
  EXPECT_EQ(scaled.parameter, (std::vector<float>{6, 10}));
}

}  // namespace
}  // namespace optshard::testing
