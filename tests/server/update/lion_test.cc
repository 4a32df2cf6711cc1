// Lion against its paper's algorithm, written out in double.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "server/update/update_rule.h"
#include "tests/server/update/golden/torch_goldens.h"

namespace optshard::testing {
namespace {

// Algorithm 2 of arXiv 2302.06675.
void PaperStep(double lr, Numbers betas, double decay, double gradient, double* parameter,
               double* average) {
  const double direction = betas[0] * *average + (1 - betas[0]) * gradient;
  const double sign = direction > 0 ? 1 : direction < 0 ? -1 : 0;
  *parameter -= lr * (sign + decay * *parameter);
  *average = betas[1] * *average + (1 - betas[1]) * gradient;
}

TEST(Lion, HundredSteps_AreThePapers) {
  const UpdateRule& rule = **RuleRegistry::Find("lion");
  Hyperparameters given;
  given.Set("lr", 1e-2);
  given.Set("weight_decay", 0.5);
  const Hyperparameters group = *rule.Validate(given);
  const GoldenData data = MakeGoldenData();
  std::vector<float> parameter = data.parameter;
  std::vector<float> average(parameter.size());
  std::vector<double> paper_parameter(parameter.begin(), parameter.end());
  std::vector<double> paper_average(parameter.size());
  SpanUpdate span;
  span.parameter = parameter.data();
  span.slots[0] = average.data();
  span.elements = static_cast<int64_t>(parameter.size());
  for (int step = 1; step <= kGoldenSteps; ++step) {
    const std::vector<float>& gradient = data.gradients[step - 1];
    span.gradient = gradient.data();
    rule.Update(DriverKind::kSimd, rule.Prepare(group, step), span);
    for (size_t i = 0; i < parameter.size(); ++i) {
      PaperStep(1e-2, group.List("betas"), 0.5, gradient[i], &paper_parameter[i],
                &paper_average[i]);
    }
  }
  for (size_t i = 0; i < parameter.size(); ++i) {
    ASSERT_NEAR(parameter[i], paper_parameter[i], 1e-6) << i;
    ASSERT_NEAR(average[i], paper_average[i], 1e-6) << i;
  }
}

TEST(Lion, MaximizeAndNothing_GoTheOtherWayAndNowhere) {
  const UpdateRule& rule = **RuleRegistry::Find("lion");
  Hyperparameters given;
  given.Set("lr", 0.25);
  given.Set("maximize", true);
  std::vector<float> parameter = {1, 1, 1};
  std::vector<float> average(3);
  const std::vector<float> gradient = {2, -2, 0};
  SpanUpdate span;
  span.parameter = parameter.data();
  span.gradient = gradient.data();
  span.slots[0] = average.data();
  span.elements = 3;
  rule.Update(DriverKind::kScalar, rule.Prepare(*rule.Validate(given), 1), span);
  EXPECT_EQ(parameter, (std::vector<float>{1.25f, 0.75f, 1}));
}

}  // namespace
}  // namespace optshard::testing
