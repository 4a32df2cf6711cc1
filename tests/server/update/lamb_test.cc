// LAMB against its paper's algorithm, written out in double.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "server/update/update_rule.h"
#include "tests/server/update/golden/torch_goldens.h"

namespace optshard::testing {
namespace {

double Norm(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

// Algorithm 2 of arXiv 1904.00962, with phi(z) = z.
struct Paper {
  double lr;
  Numbers betas;
  double eps;
  double decay;
  std::vector<double> parameter, m, v;

  // The share of lr by which it steps.
  double Step(int step, const std::vector<float>& gradient) {
    std::vector<double> direction(parameter.size());
    for (size_t i = 0; i < parameter.size(); ++i) {
      const double g = gradient[i];
      m[i] = betas[0] * m[i] + (1 - betas[0]) * g;
      v[i] = betas[1] * v[i] + (1 - betas[1]) * g * g;
      const double m_hat = m[i] / (1 - std::pow(betas[0], step));
      const double v_hat = v[i] / (1 - std::pow(betas[1], step));
      direction[i] = m_hat / (std::sqrt(v_hat) + eps) + decay * parameter[i];
    }
    const double ratio = Norm(parameter) / Norm(direction);
    for (size_t i = 0; i < parameter.size(); ++i) parameter[i] -= lr * ratio * direction[i];
    return ratio;
  }
};

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

TEST(Lamb, HundredSteps_AreThePapers) {
  Hyperparameters given;
  given.Set("lr", 1e-2);
  given.Set("weight_decay", 0.5);
  const GoldenData data = MakeGoldenData();
  LambRun run(given, data.parameter);
  Paper paper{1e-2, run.group.List("betas"), run.group.Number("eps"), 0.5, {}, {}, {}};
  paper.parameter.assign(data.parameter.begin(), data.parameter.end());
  paper.m.resize(paper.parameter.size());
  paper.v.resize(paper.parameter.size());
  double furthest_ratio = 1;
  for (int step = 1; step <= kGoldenSteps; ++step) {
    run.Step(step, data.gradients[step - 1]);
    const double ratio = paper.Step(step, data.gradients[step - 1]);
    if (std::abs(std::log(ratio)) > std::abs(std::log(furthest_ratio))) furthest_ratio = ratio;
  }
  EXPECT_GT(std::abs(std::log(furthest_ratio)), 0.1) << "the ratio was 1 throughout";
  for (size_t i = 0; i < paper.parameter.size(); ++i) {
    ASSERT_NEAR(run.parameter[i], paper.parameter[i], 2e-6) << i;
    ASSERT_NEAR(run.exp_avg[i], paper.m[i], 2e-6) << i;
    ASSERT_NEAR(run.exp_avg_sq[i], paper.v[i], 2e-6) << i;
  }
}

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
