#include "tests/server/shard/engine/step_oracle.h"

#include <utility>

namespace optshard::testing {
namespace {

std::vector<float> Average(const std::vector<std::vector<std::vector<float>>>& gradients,
                           const std::vector<std::vector<bool>>& has, int parameter,
                           int64_t elements, const ReductionTree& tree) {
  std::vector<float> average(elements);
  for (int64_t i = 0; i < elements; ++i) {
    const auto value = [&](Rank rank) {
      return has[rank][parameter] ? gradients[rank][parameter][i] : 0.0f;
    };
    float total = 0;
    for (size_t g = 0; g < tree.node_groups.size(); ++g) {
      const std::vector<Rank>& group = tree.node_groups[g];
      float sum = value(group[0]);
      for (size_t r = 1; r < group.size(); ++r) sum += value(group[r]);
      total = g == 0 ? sum : total + sum;
    }
    average[i] = total / static_cast<float>(gradients.size());
  }
  return average;
}

}  // namespace

StepOracle::StepOracle(const ParameterSpace& space, const UpdateRule& rule,
                       const std::vector<Hyperparameters>& groups)
    : space_(space), rule_(rule), counts_(space.parameter_count()) {
  for (int p = 0; p < space.parameter_count(); ++p) {
    const int64_t elements = space.parameter(p).elements();
    parameters_.emplace_back(elements);
    slots_.emplace_back();
    for (const optshard::Slot& slot : rule.Slots(groups[space.group_of(p)])) {
      slots_.back().emplace_back(elements, slot.initial);
    }
  }
}

void StepOracle::SetParameter(int parameter, const std::vector<float>& values) {
  parameters_[parameter] = values;
}

void StepOracle::Step(const std::vector<std::vector<std::vector<float>>>& gradients,
                      const std::vector<std::vector<bool>>& has, GradientMode mode,
                      const ReductionTree& tree, const std::vector<Hyperparameters>& groups) {
  for (int p = 0; p < space_.parameter_count(); ++p) {
    int first = -1;
    for (size_t r = 0; r < has.size() && first < 0; ++r) {
      if (has[r][p]) first = static_cast<int>(r);
    }
    if (first < 0) continue;
    const int64_t elements = space_.parameter(p).elements();
    const std::vector<float> gradient = mode == GradientMode::kAveraged
                                            ? gradients[first][p]
                                            : Average(gradients, has, p, elements, tree);
    const Coefficients coefficients = rule_.Prepare(groups[space_.group_of(p)], ++counts_[p]);
    SpanUpdate span;
    span.parameter = parameters_[p].data();
    span.gradient = gradient.data();
    for (size_t s = 0; s < slots_[p].size(); ++s) span.slots[s] = slots_[p][s].data();
    span.elements = elements;
    rule_.Update(DriverKind::kScalar, coefficients, span);
  }
}

}  // namespace optshard::testing
