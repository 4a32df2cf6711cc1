#include "tests/server/update/rule_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/parameter_space.h"
#include "tests/testing/rule_shape.h"

namespace optshard::testing {
namespace {

constexpr int kGuard = 32;  // elements before and behind: more than the widest vector

std::vector<const OptionSpec*> OffByDefault(const RuleSpec& spec) {
  std::vector<const OptionSpec*> options;
  for (const OptionSpec& option : spec.options) {
    if (option.default_value == HyperValue(false) || option.default_value == HyperValue(0.0)) {
      options.push_back(&option);
    }
  }
  return options;
}

HyperValue SwitchedOn(const OptionSpec& option) {
  return absl::holds_alternative<bool>(option.default_value) ? HyperValue(true) : HyperValue(0.125);
}

float Ordinary(std::mt19937& random) {
  // Raw generator output only: distributions differ between standard libraries.
  const float mantissa = 1 + static_cast<float>(random() & 0x7fffff) / 0x800000;
  const int exponent = static_cast<int>(random() % 24) - 12;
  return std::ldexp((random() & 1) != 0 ? mantissa : -mantissa, exponent);
}

float Special(std::mt19937& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kSpecials[] = {0.0f,
                                 -0.0f,
                                 kInfinity,
                                 -kInfinity,
                                 std::numeric_limits<float>::quiet_NaN(),
                                 std::numeric_limits<float>::denorm_min(),
                                 -std::numeric_limits<float>::denorm_min(),
                                 1e-40f,
                                 -1e-39f,
                                 std::numeric_limits<float>::min(),
                                 std::numeric_limits<float>::max(),
                                 std::numeric_limits<float>::lowest()};
  return kSpecials[random() % (sizeof(kSpecials) / sizeof(kSpecials[0]))];
}

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

bool SameBits(float a, float b) {
  // Which of two NaN operands an instruction passes on depends on their order, which compilers are
  // free to change for + and *.
  return Bits(a) == Bits(b) || (std::isnan(a) && std::isnan(b));
}

// Where a rule needs whole parameters, their shapes have one to four dimensions by turns.
std::vector<int64_t> ShapeOf(const UpdateRule* rule, int64_t elements, uint32_t seed) {
  if (rule == nullptr || rule->spec().element_wise || seed % 4 == 0) return {elements};
  std::vector<int64_t> shape = {elements};
  for (uint32_t more = seed % 4; more > 0; --more) {
    for (const int64_t extent : {5, 3, 2, 1}) {
      if (shape.front() % extent != 0) continue;
      shape.front() /= extent;
      shape.insert(shape.begin() + 1 + seed / 4 % shape.size(), extent);
      break;
    }
  }
  return shape;
}

// The slots after so many steps of the rule with ordinary gradients; empty ones where the shape
// lacks them.
std::vector<std::vector<float>> StateAfterSteps(const UpdateRule& rule,
                                                const Hyperparameters& group, StepNumber steps,
                                                const std::vector<int64_t>& shape,
                                                std::mt19937& random) {
  const int64_t elements = ElementsOf(shape);
  std::vector<float> gradient(elements);
  std::vector<float> parameter(elements);
  std::vector<std::vector<float>> slots;
  for (const Slot& slot : rule.Slots(group)) {
    slots.emplace_back(slot.ValuesFor(shape, elements), slot.initial);
  }
  SpanUpdate span;
  span.gradient = gradient.data();
  span.parameter = parameter.data();
  for (size_t slot = 0; slot < slots.size(); ++slot) span.slots[slot] = slots[slot].data();
  span.elements = elements;
  AlignedFloats workspace(rule.WorkspaceBytes(shape, DType::kFloat32) / sizeof(float));
  span.shape = shape;
  span.workspace = workspace.data();
  for (StepNumber step = 1; step <= steps; ++step) {
    for (float& value : gradient) value = Ordinary(random);
    rule.Update(DriverKind::kScalar, rule.Prepare(group, step), span);
  }
  return slots;
}

// Which slots the rule itself makes negative values of.
std::vector<bool> SignedSlots(const UpdateRule& rule, const Hyperparameters& group) {
  std::mt19937 random(1);
  std::vector<bool> are_signed;
  for (const std::vector<float>& slot :
       StateAfterSteps(rule, group, 3, ShapeFor(rule, {64}), random)) {
    are_signed.push_back(std::any_of(slot.begin(), slot.end(), [](float v) { return v < 0; }));
  }
  return are_signed;
}

std::string TensorName(size_t tensor) {
  if (tensor < 2) return tensor == 0 ? "gradient" : "parameter";
  return absl::StrCat("slot ", tensor - 2);
}

std::vector<RuleCase> CasesOf(const std::vector<const UpdateRule*>& rules) {
  std::vector<RuleCase> cases;
  for (const UpdateRule* rule : rules) {
    const std::vector<const OptionSpec*> options = OffByDefault(rule->spec());
    for (uint32_t subset = 0; subset < 1u << options.size(); ++subset) {
      Hyperparameters given;
      for (size_t k = 0; k < options.size(); ++k) {
        if ((subset >> k & 1) != 0) given.Set(options[k]->name, SwitchedOn(*options[k]));
      }
      const absl::StatusOr<Hyperparameters> group = rule->Validate(given);
      if (!group.ok()) continue;  // options that do not go together
      cases.push_back({rule, *group, absl::StrCat(rule->spec().name, " ", group->ToString()),
                       SignedSlots(*rule, *group)});
    }
  }
  return cases;
}

}  // namespace

std::vector<RuleCase> AllRuleCases() { return CasesOf(RuleRegistry::All()); }

std::vector<RuleCase> ElementWiseRuleCases() {
  std::vector<const UpdateRule*> rules = RuleRegistry::All();
  rules.erase(std::remove_if(rules.begin(), rules.end(),
                             [](const UpdateRule* rule) { return !rule->spec().element_wise; }),
              rules.end());
  return CasesOf(rules);
}

RuleData::RuleData(const RuleCase* rule_case, int64_t elements, int misalignment, bool specials,
                   uint32_t seed)
    : elements_(elements),
      offset_(kGuard + misalignment),
      seed_(seed),
      shape_(ShapeOf(rule_case == nullptr ? nullptr : rule_case->rule, elements, seed)) {
  std::mt19937 random(seed);
  if (rule_case != nullptr) {
    shape_ = ShapeFor(*rule_case->rule, shape_);
    workspace_.resize(rule_case->rule->WorkspaceBytes(shape_, DType::kFloat32) / sizeof(float));
  }
  std::vector<Slot> slots;
  if (rule_case != nullptr) slots = rule_case->rule->Slots(rule_case->group);
  for (size_t tensor = 0; tensor < slots.size() + 2; ++tensor) {
    const bool is_signed = tensor < 2 || rule_case->signed_slots[tensor - 2];
    const int64_t count = tensor < 2 ? elements : slots[tensor - 2].ValuesFor(shape_, elements);
    if (tensor >= 2) slots_.push_back(slots[tensor - 2].ShapeFor(shape_).has_value());
    AlignedFloats values(static_cast<size_t>(count) + size_t{2} * kGuard + misalignment);
    for (float& value : values) {
      value = specials && random() % 4 == 0 ? Special(random) : Ordinary(random);
      if (!is_signed) value = std::fabs(value);
    }
    tensors_.push_back(std::move(values));
  }
  if (specials || slots.empty()) return;
  const std::vector<std::vector<float>> state =
      StateAfterSteps(*rule_case->rule, rule_case->group, 2, shape_, random);
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    std::copy(state[slot].begin(), state[slot].end(), Start(static_cast<int>(2 + slot)));
  }
}

SpanUpdate RuleData::Span() {
  SpanUpdate span;
  span.gradient = Start(0);
  span.parameter = Start(1);
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot]) span.slots[slot] = Start(static_cast<int>(2 + slot));
  }
  span.elements = elements_;
  span.shape = shape_;
  span.workspace = workspace_.data();
  return span;
}

bool RuleData::HasNan() const {
  const auto is_nan = [](float value) { return std::isnan(value); };
  return std::any_of(tensors_.begin(), tensors_.end(), [&](const AlignedFloats& tensor) {
    return std::any_of(tensor.begin(), tensor.end(), is_nan);
  });
}

std::string RuleData::DifferenceTo(const RuleData& expected) const {
  for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    for (size_t i = 0; i < tensors_[tensor].size(); ++i) {
      const float got = tensors_[tensor][i];
      const float wanted = expected.tensors_[tensor][i];
      if (SameBits(got, wanted)) continue;
      return absl::StrFormat("%s, element %d of %d: 0x%08x (%g), expected 0x%08x (%g); seed %u",
                             TensorName(tensor), static_cast<int64_t>(i) - offset_, elements_,
                             Bits(got), got, Bits(wanted), wanted, seed_);
    }
  }
  return "";
}

}  // namespace optshard::testing
