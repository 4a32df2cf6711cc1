#include "tests/server/shard/engine/step_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "common/block_code.h"

namespace optshard::testing {
namespace {

template <typename T>
Values AverageIn(const std::vector<std::vector<Values>>& gradients,
                 const std::vector<std::vector<bool>>& has, int parameter, int64_t elements,
                 const ReductionTree& tree) {
  Values average(elements);
  for (int64_t i = 0; i < elements; ++i) {
    const auto value = [&](Rank rank) {
      return has[rank][parameter] ? static_cast<T>(gradients[rank][parameter][i]) : T{0};
    };
    T total = 0;
    for (size_t g = 0; g < tree.node_groups.size(); ++g) {
      const std::vector<Rank>& group = tree.node_groups[g];
      T sum = value(group[0]);
      for (size_t r = 1; r < group.size(); ++r) sum += value(group[r]);
      total = g == 0 ? sum : total + sum;
    }
    average[i] = total / static_cast<T>(gradients.size());
  }
  return average;
}

// What a slot of the whole parameter reads as once it is kept.
void Keep(const SlotType& type, Values* slot) {
  if (!type.code.has_value()) {
    for (double& value : *slot) value = RoundedTo(type.dtype, value);
    return;
  }
  const auto elements = static_cast<int64_t>(slot->size());
  std::vector<float> values(slot->begin(), slot->end());
  std::vector<uint8_t> codes(CodeBytes(*type.code, elements));
  std::vector<float> scales(ScaleBytes(*type.code, elements) / sizeof(float) + 1);
  const CodedArray coded = {*type.code, codes.data(), scales.data()};
  Encode(values.data(), elements, coded);
  Decode(coded, elements, values.data());
  slot->assign(values.begin(), values.end());
}

}  // namespace

StepOracle::StepOracle(const ParameterSpace& space, std::vector<GroupUpdate> groups,
                       const StateOptions& state)
    : space_(space), groups_(std::move(groups)), state_(state) {
  AddParameters();
}

void StepOracle::Grow(const ParameterSpace& space, std::vector<GroupUpdate> groups) {
  space_ = space;
  groups_ = std::move(groups);
  AddParameters();
}

void StepOracle::AddParameters() {
  counts_.resize(space_.parameter_count());
  for (int p = static_cast<int>(parameters_.size()); p < space_.parameter_count(); ++p) {
    const int64_t elements = space_.parameter(p).elements();
    parameters_.emplace_back(elements);
    masters_.emplace_back(elements);
    corrections_.emplace_back(elements);
    slots_.emplace_back();
    types_.emplace_back();
    const GroupUpdate& group = groups_[space_.group_of(p)];
    scalar_slots_.push_back(group.rule->InitialScalarSlots(group.hyperparameters));
    has_own_shape_.emplace_back();
    for (const optshard::Slot& slot : group.rule->Slots(group.hyperparameters)) {
      has_own_shape_.back().push_back(slot.has_own_shape());
      types_.back().push_back(SlotTypeOf(state_, space_.parameter(p), slot));
      slots_.back().emplace_back(slot.ValuesFor(space_.parameter(p).shape, elements), slot.initial);
      Keep(types_.back().back(), &slots_.back().back());
    }
  }
}

void StepOracle::SetParameter(int parameter, const Values& values) {
  parameters_[parameter] = values;
  const DType dtype = state_.PublishedAs(space_.parameter(parameter).dtype);
  for (size_t i = 0; i < values.size(); ++i) {
    if (RoundedTo(dtype, masters_[parameter][i]) != values[i]) masters_[parameter][i] = values[i];
  }
}

void StepOracle::Step(const std::vector<std::vector<Values>>& gradients,
                      const std::vector<std::vector<bool>>& has, GradientMode mode,
                      const ReductionTree& tree,
                      const std::vector<Hyperparameters>& hyperparameters,
                      const std::vector<std::vector<bool>>& touched) {
  for (int p = 0; p < space_.parameter_count(); ++p) {
    int first = -1;
    for (size_t r = 0; r < has.size() && first < 0; ++r) {
      if (has[r][p]) first = static_cast<int>(r);
    }
    if (first < 0) continue;
    const int64_t elements = space_.parameter(p).elements();
    const DType dtype = space_.parameter(p).dtype;
    const bool is_float64 = dtype == DType::kFloat64;
    const Values gradient = mode == GradientMode::kAveraged ? gradients[first][p]
                            : is_float64 ? AverageIn<double>(gradients, has, p, elements, tree)
                                         : AverageIn<float>(gradients, has, p, elements, tree);
    const Coefficients coefficients = RuleOf(p).Prepare(hyperparameters[space_.group_of(p)],
                                                        ++counts_[p], dtype, scalar_slots_[p]);
    scalar_slots_[p] = coefficients.scalar_slots;
    const Values masters = masters_[p];
    const std::vector<Values> slots = slots_[p];
    if (is_float64) {
      StepIn<double>(p, gradient, coefficients);
    } else {
      StepIn<float>(p, gradient, coefficients);
    }
    for (size_t i = 0; !touched.empty() && i < touched[p].size(); ++i) {
      if (touched[p][i]) continue;
      masters_[p][i] = masters[i];
      for (size_t s = 0; s < slots.size(); ++s) slots_[p][s][i] = slots[s][i];
    }
    for (size_t i = 0; i < masters_[p].size(); ++i) {
      parameters_[p][i] = RoundedTo(state_.PublishedAs(dtype), masters_[p][i]);
    }
    if (state_.HasCorrection(dtype)) {
      Correct(p);
    } else if (!state_.HasMaster(dtype)) {
      masters_[p] = parameters_[p];
    }
    for (size_t s = 0; s < slots_[p].size(); ++s) Keep(types_[p][s], &slots_[p][s]);
  }
}

void StepOracle::Correct(int parameter) {
  const bool is_bfloat16 = space_.parameter(parameter).dtype == DType::kBFloat16;
  for (size_t i = 0; i < masters_[parameter].size(); ++i) {
    const double rounded = parameters_[parameter][i];
    const int exponent = rounded == 0 ? -1000 : std::ilogb(rounded);
    const double half = is_bfloat16 ? std::ldexp(1, std::max(exponent, -126) - 8)
                                    : std::ldexp(1, std::max(exponent, -14) - 11);
    const double share = std::max(-1.0, std::min(1.0, (masters_[parameter][i] - rounded) / half));
    corrections_[parameter][i] = std::nearbyint(share * 127) + 0.0;  // not -0
    const float part = static_cast<float>(corrections_[parameter][i]) / 127;
    masters_[parameter][i] = static_cast<float>(rounded) + part * static_cast<float>(half);
  }
}

const UpdateRule& StepOracle::RuleOf(int parameter) const {
  return *groups_[space_.group_of(parameter)].rule;
}

template <typename T>
void StepOracle::StepIn(int parameter, const Values& gradient, const Coefficients& coefficients) {
  std::vector<T> values(masters_[parameter].begin(), masters_[parameter].end());
  const std::vector<T> of_gradient(gradient.begin(), gradient.end());
  std::vector<std::vector<T>> slots;
  for (const Values& slot : slots_[parameter]) slots.emplace_back(slot.begin(), slot.end());
  SpanUpdate span;
  span.parameter = values.data();
  span.gradient = of_gradient.data();
  for (size_t s = 0; s < slots.size(); ++s) span.slots[s] = slots[s].data();
  span.elements = static_cast<int64_t>(values.size());
  const ParameterSpec& spec = space_.parameter(parameter);
  const UpdateRule& rule = RuleOf(parameter);
  struct alignas(64) Line {
    char bytes[64];
  };
  std::vector<Line> workspace(rule.WorkspaceBytes(spec.shape, spec.dtype) / sizeof(Line) + 1);
  span.shape = spec.shape;
  span.workspace = workspace.data();
  rule.Update(DriverKind::kScalar, coefficients, span);
  masters_[parameter].assign(values.begin(), values.end());
  for (size_t s = 0; s < slots.size(); ++s) {
    slots_[parameter][s].assign(slots[s].begin(), slots[s].end());
  }
}

}  // namespace optshard::testing
