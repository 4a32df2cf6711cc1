#include "client/owner/state_loading.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/owner/group_values.h"
#include "client/owner/parameter_state.h"
#include "client/owner/state_shares.h"
#include "common/errors.h"
#include "server/update/step_hyperparameters.h"

namespace optshard {
namespace {

bool IsMaster(const ParameterSlot& slot) {
  return slot.name == kMasterSlot || slot.name == kCorrectionSlot;
}

// Of a state dict's groups, each of whose parameters has some number of its own.
absl::Status CheckGroups(const StateDict& given, const StateLayout& layout) {
  const std::vector<GroupSpec>& groups = layout.owners->space().groups();
  if (given.param_groups.size() != groups.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "loaded state dict has a different number of parameter groups: ", given.param_groups.size(),
        ", expected ", groups.size()));
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    const size_t size = given.param_groups[g].params.size();
    if (size == groups[g].parameters.size()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "loaded state dict contains a parameter group that doesn't match the size of optimizer's "
        "group: group ",
        g, " has ", size, " parameters, expected ", groups[g].parameters.size()));
  }
  return absl::OkStatus();
}

// The slot's values, as a tensor of its type.
absl::StatusOr<at::Tensor> CheckedSlot(const c10::IValue& value, const ParameterSlot& slot,
                                       const ParameterSpec& parameter, const std::string& what) {
  const auto error = [&](const auto&... is) {
    return absl::InvalidArgumentError(
        absl::StrCat("the slot \"", slot.name, "\" of ", what, " ", is...));
  };
  if (slot.is_scalar()) {
    double number = 0;
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().numel() == 1 &&
        !value.toTensor().is_complex()) {
      number = value.toTensor().item<double>();
    } else if (value.isInt() || value.isDouble()) {
      number = value.toScalar().toDouble();
    } else {
      return error("is ", value.tagKind(), ", expected one real number");
    }
    if (slot.kind == SlotKind::kStep && !IsStepCount(number)) {
      return error("is ", number, ", expected how often the parameter was updated: 0, 1, 2, ...");
    }
    return at::full({}, number, at::TensorOptions(at::kDouble));
  }
  if (!value.isTensor() || !value.toTensor().defined()) {
    return error("is ", value.tagKind(), ", expected a tensor");
  }
  const at::Tensor& tensor = value.toTensor();
  const bool of_type = slot.kind == SlotKind::kCorrections ? tensor.scalar_type() == at::kChar
                                                           : tensor.is_floating_point();
  if (tensor.layout() != at::kStrided || !of_type) {
    return error("is ", c10::str(tensor.layout()), " ", c10::toString(tensor.scalar_type()),
                 ", expected a dense tensor of ",
                 slot.kind == SlotKind::kCorrections ? "int8" : "floating-point numbers");
  }
  const at::IntArrayRef shape =
      slot.shape.has_value() ? at::IntArrayRef(*slot.shape) : at::IntArrayRef(parameter.shape);
  if (tensor.sizes() != shape) {
    return error("has the shape ", ShapeText(tensor.sizes()), ", expected ", ShapeText(shape));
  }
  return tensor.detach();
}

// Empty where they are those of a parameter that was never updated.
absl::StatusOr<StateValues> CheckedValues(const StateValues& given, int position,
                                          const StateLayout& layout) {
  const int parameter = layout.owners->space().index_at(position);
  const ParameterSpec& spec = layout.parameter(parameter);
  const std::string what = absl::StrCat("parameter ", position, " \"", spec.name, "\"");
  const std::vector<ParameterSlot> slots = layout.Slots(parameter);
  std::vector<std::string> names;
  for (const ParameterSlot& slot : slots) names.push_back(slot.name);
  const auto error = [&](const std::string& difference) {
    return absl::InvalidArgumentError(
        absl::StrCat("the state of ", what, " ", difference, "; the slots of the rule \"",
                     layout.rule(parameter).spec().name, "\" are ", absl::StrJoin(names, ", ")));
  };
  StateValues checked;
  for (const auto& [given_name, value] : given) {
    const std::string& name = given_name;  // lambdas capture no structured binding
    const auto slot = std::find_if(slots.begin(), slots.end(),
                                   [&](const ParameterSlot& each) { return each.name == name; });
    if (value.isNone()) continue;
    if (slot == slots.end()) return error(absl::StrCat("has \"", name, "\""));
    absl::StatusOr<at::Tensor> tensor = CheckedSlot(value, *slot, spec, what);
    if (!tensor.ok()) return tensor.status();
    checked.emplace(name, *std::move(tensor));
  }
  if (checked.empty()) return checked;
  for (const ParameterSlot& slot : slots) {
    if (checked.count(slot.name) != 0 || IsMaster(slot)) continue;
    const bool may_be_missing =
        slot.kind == SlotKind::kStep && !layout.rule(parameter).spec().exports_step;
    if (!may_be_missing) return error(absl::StrCat("lacks \"", slot.name, "\""));
    // Only whether there was a first update matters.
    checked.emplace(slot.name, at::full({}, 1, at::TensorOptions(at::kDouble)));
  }
  return checked;
}

// What the part has before the first step.
at::Tensor FirstValues(const StateLayout& layout, const OwnedPart& part, const ParameterSlot& slot,
                       const at::Tensor& parameter, const Hyperparameters& hyperparameters) {
  const UpdateRule& rule = layout.rule(part.parameter);
  const int64_t elements = ElementsOf(slot.shape.has_value() ? *slot.shape : part.shape);
  const auto constant = [&](double value) {
    return at::full({elements}, value, at::TensorOptions(TypeOf(slot)));
  };
  if (slot.name == kMasterSlot) {
    return parameter.detach().reshape(-1).narrow(0, part.offset_elements, elements);
  }
  switch (slot.kind) {
    case SlotKind::kScalar:
      return constant(rule.InitialScalarSlots(hyperparameters)[slot.index]);
    case SlotKind::kElements:
      return constant(rule.Slots(hyperparameters)[slot.index].initial);
    case SlotKind::kStep:
    case SlotKind::kCorrections:
      break;
  }
  return constant(0);
}

}  // namespace

absl::StatusOr<StateDict> CheckedStateDict(const StateDict& given, const StateLayout& layout) {
  const at::NoGradGuard no_grad;
  absl::Status groups = CheckGroups(given, layout);
  if (!groups.ok()) return groups;
  StateDict checked;
  std::map<int64_t, int64_t> number_of;  // by the dict's
  int64_t next = 0;
  for (const StateDict::Group& group : given.param_groups) {
    checked.param_groups.push_back({group.options, {}});
    for (const int64_t index : group.params) {
      checked.param_groups.back().params.push_back(next);
      if (number_of.emplace(index, next++).second) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("loaded state dict has parameter ", index, " twice"));
    }
  }
  for (const auto& [index, values] : given.state) {
    const auto known = number_of.find(index);
    if (known == number_of.end()) {
      return absl::InvalidArgumentError(absl::StrCat("loaded state dict has state of parameter ",
                                                     index, ", which none of its groups has"));
    }
    absl::StatusOr<StateValues> state =
        CheckedValues(values, static_cast<int>(known->second), layout);
    if (!state.ok()) return state.status();
    if (!state->empty()) checked.state.emplace(known->second, *std::move(state));
  }
  return checked;
}

absl::StatusOr<std::vector<Hyperparameters>> CheckedHyperparameters(
    const StateDict& checked, const StateLayout& layout,
    absl::Span<const Hyperparameters> present) {
  if (checked.param_groups.size() != present.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the state dict has ",
                                                   checked.param_groups.size(),
                                                   " param groups, expected ", present.size()));
  }
  std::vector<Hyperparameters> result;
  for (size_t g = 0; g < checked.param_groups.size(); ++g) {
    absl::StatusOr<Hyperparameters> of_group =
        HyperparametersFrom(*(*layout.groups)[g].rule, checked.param_groups[g].options, present[g]);
    if (!of_group.ok()) {
      return errors::WithContext(of_group.status(), absl::StrCat("param group ", g));
    }
    result.push_back(*std::move(of_group));
  }
  return ValidateForStep(*layout.groups, result);
}

const at::Tensor* GivenTensor(const StateDict& checked, const StateLayout& layout, int parameter,
                              const ParameterSlot& slot) {
  const auto state = checked.state.find(layout.owners->space().position_of(parameter));
  if (state == checked.state.end()) return nullptr;
  const auto value = state->second.find(slot.name);
  return value == state->second.end() ? nullptr : &value->second.toTensor();
}

absl::optional<at::Tensor> GivenValues(const StateDict& checked, const StateLayout& layout,
                                       const OwnedPart& part, const ParameterSlot& slot) {
  const at::Tensor* const given = GivenTensor(checked, layout, part.parameter, slot);
  if (given == nullptr) return absl::nullopt;
  const at::Tensor flat = given->reshape(-1);
  if (slot.shape.has_value()) return flat;
  return flat.narrow(0, part.offset_elements, ElementsOf(part.shape));
}

absl::Status StageGiven(StateAccess& state, const StateLayout& layout, Rank rank,
                        const StateDict& checked) {
  const c10::InferenceMode normal_tensors(false);
  const at::NoGradGuard no_grad;
  for (const int parameter : ParametersOf(*layout.owners, rank)) {
    const OwnedPart part = *layout.owners->PartOf(parameter, rank);
    const std::vector<ParameterSlot> slots = layout.Slots(parameter);
    for (size_t s = 0; s < slots.size(); ++s) {
      const absl::optional<at::Tensor> given = GivenValues(checked, layout, part, slots[s]);
      if (!given.has_value()) continue;
      absl::Status staged = StageElements(state, parameter, static_cast<int>(s),
                                          OffsetOf(slots[s], part), given->cpu());
      if (!staged.ok()) return staged;
    }
  }
  return absl::OkStatus();
}

absl::Status StageFirstValues(StateAccess& state, const StateLayout& layout, Rank rank,
                              absl::FunctionRef<bool(int parameter, int slot)> is_given,
                              absl::Span<const at::Tensor> parameters,
                              absl::Span<const Hyperparameters> hyperparameters) {
  const c10::InferenceMode normal_tensors(false);
  const at::NoGradGuard no_grad;
  for (const int parameter : ParametersOf(*layout.owners, rank)) {
    const OwnedPart part = *layout.owners->PartOf(parameter, rank);
    const Hyperparameters& group = hyperparameters[layout.owners->GroupOf(parameter)];
    const std::vector<ParameterSlot> slots = layout.Slots(parameter);
    for (size_t s = 0; s < slots.size(); ++s) {
      if (is_given(parameter, static_cast<int>(s))) continue;
      const at::Tensor values = FirstValues(layout, part, slots[s], parameters[parameter], group);
      absl::Status staged = StageElements(state, parameter, static_cast<int>(s),
                                          OffsetOf(slots[s], part), values.cpu().reshape(-1));
      if (!staged.ok()) return staged;
    }
  }
  return absl::OkStatus();
}

}  // namespace optshard
