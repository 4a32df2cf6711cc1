#include "client/owner/group_values.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "absl/types/variant.h"

namespace optshard {
namespace {

constexpr const char* kNoOptions[] = {"foreach",        "fused",       "capturable",
                                      "differentiable", "param_names", "initial_lr"};

bool IsNoOption(const std::string& name) {
  for (const char* const each : kNoOptions) {
    if (name == each) return true;
  }
  return false;
}

// PyTorch keeps it for both classes; here they are two rules.
constexpr char kDecoupled[] = "decoupled_weight_decay";

bool IsWhole(const std::string& name) { return name == "ns_steps"; }

absl::optional<double> NumberOf(const c10::IValue& value) {
  if (value.isInt()) return static_cast<double>(value.toInt());
  if (value.isDouble()) return value.toDouble();
  if (value.isBool()) return value.toBool() ? 1 : 0;
  if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().numel() != 1 ||
      value.toTensor().is_complex()) {
    return absl::nullopt;
  }
  return value.toTensor().item<double>();
}

// Adafactor's first eps is None in PyTorch where the precision is meant, which is 0 here.
bool MayBeginWithNone(const UpdateRule& rule, const OptionSpec& option) {
  return rule.spec().name == "adafactor" && option.name == "eps";
}

absl::optional<Numbers> NumbersOf(const c10::IValue& value, bool may_begin_with_none) {
  std::vector<double> numbers;
  const auto add = [&numbers, may_begin_with_none](const auto& elements) {
    for (const c10::IValue& each : elements) {
      const bool is_none = each.isNone() && numbers.empty() && may_begin_with_none;
      const absl::optional<double> number = is_none ? 0 : NumberOf(each);
      if (number.has_value()) numbers.push_back(*number);
    }
    return numbers.size() == elements.size() && numbers.size() <= kMaxNumbers;
  };
  const bool all = value.isTuple()  ? add(value.toTupleRef().elements())
                   : value.isList() ? add(value.toListRef())
                                    : false;
  if (!all) return absl::nullopt;
  return Numbers(absl::MakeConstSpan(numbers));
}

const OptionSpec* FindOption(const UpdateRule& rule, const std::string& name) {
  for (const OptionSpec& option : rule.spec().options) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

// As a value of the option's type; of the nearest type where there is no such option.
absl::optional<HyperValue> HyperValueOf(const UpdateRule& rule, const c10::IValue& value,
                                        const OptionSpec* option) {
  if (option != nullptr) {
    if (absl::holds_alternative<bool>(option->default_value)) {
      if (value.isBool()) return HyperValue(value.toBool());
      if (value.isInt()) return HyperValue(value.toInt() != 0);
      return absl::nullopt;
    }
    if (absl::holds_alternative<Numbers>(option->default_value)) {
      const absl::optional<Numbers> numbers = NumbersOf(value, MayBeginWithNone(rule, *option));
      return numbers.has_value() ? absl::optional<HyperValue>(*numbers) : absl::nullopt;
    }
    if (absl::holds_alternative<std::string>(option->default_value)) {
      if (value.isNone()) return option->default_value;
      return value.isString() ? absl::optional<HyperValue>(value.toStringRef()) : absl::nullopt;
    }
  }
  const absl::optional<double> number = NumberOf(value);
  return number.has_value() ? absl::optional<HyperValue>(*number) : absl::nullopt;
}

}  // namespace

StateValues ValuesOf(const UpdateRule& rule, const Hyperparameters& hyperparameters) {
  StateValues values;
  for (const OptionSpec& option : rule.spec().options) {
    const HyperValue* const given = hyperparameters.Find(option.name);
    const HyperValue& value = given == nullptr ? option.default_value : *given;
    if (const auto* flag = absl::get_if<bool>(&value)) {
      values.emplace(option.name, *flag);
    } else if (const auto* number = absl::get_if<double>(&value)) {
      values.emplace(option.name, IsWhole(option.name) ? c10::IValue(static_cast<int64_t>(*number))
                                                       : c10::IValue(*number));
    } else if (const auto* numbers = absl::get_if<Numbers>(&value)) {
      std::vector<c10::IValue> elements(numbers->begin(), numbers->end());
      if (MayBeginWithNone(rule, option) && (*numbers)[0] == 0) elements[0] = c10::IValue();
      values.emplace(option.name, c10::ivalue::Tuple::create(std::move(elements)));
    } else {
      values.emplace(option.name, absl::get<std::string>(value));
    }
  }
  return values;
}

absl::StatusOr<Hyperparameters> HyperparametersFrom(const UpdateRule& rule,
                                                    const StateValues& values,
                                                    const Hyperparameters& present) {
  Hyperparameters result = present;
  for (const auto& [name, value] : values) {
    if (IsNoOption(name)) continue;
    const OptionSpec* const option = FindOption(rule, name);
    const bool is_adam = rule.spec().name == "adam" || rule.spec().name == "adamw";
    if (name == kDecoupled && option == nullptr && is_adam) {
      if (value.isBool() && value.toBool() == (rule.spec().name == "adamw")) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "the state dict has ", kDecoupled, " ", c10::str(value), ", which is not the rule \"",
          rule.spec().name, "\": without it is \"adam\", with it \"adamw\""));
    }
    const absl::optional<HyperValue> converted = HyperValueOf(rule, value, option);
    if (!converted.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the option \"", name, "\" of the state dict is ", value.tagKind(),
                       ", which the rule \"", rule.spec().name, "\" does not take"));
    }
    result.Set(name, *converted);
  }
  return rule.Validate(result);
}

}  // namespace optshard
