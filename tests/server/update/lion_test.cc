// What Lion does at the edges; torch_golden_test.cc compares it with its paper.
#include <gtest/gtest.h>

#include <vector>

#include "server/update/update_rule.h"

namespace optshard::testing {
namespace {

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
