#include "client/owner/checkpoint_match.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/name_list.h"
#include "server/checkpoint/array_format.h"
#include "server/checkpoint/name_escape.h"
#include "server/shard/saving/checkpoint_description.h"
#include "server/shard/state/shard_ledger.h"
#include "server/update/step_hyperparameters.h"

namespace optshard {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

template <typename Side>
std::string Differ(const std::string& what, const Side& saved, const Side& expected) {
  return absl::StrCat(what, " is ", saved, " in the checkpoint, expected ", expected);
}

const CheckpointArray* ArrayNamed(const CheckpointParameter& parameter, const std::string& name) {
  const auto found = std::find_if(parameter.arrays.begin(), parameter.arrays.end(),
                                  [&](const CheckpointArray& each) { return each.name == name; });
  return found == parameter.arrays.end() ? nullptr : &*found;
}

// "" where there is none.
std::string DifferenceOfSlots(const std::string& what, const CheckpointParameter& saved,
                              const CheckpointParameter& expected,
                              const std::vector<ParameterSlot>& slots) {
  for (const CheckpointArray& array : expected.arrays) {
    const CheckpointArray* const other = ArrayNamed(saved, array.name);
    if (other == nullptr) return absl::StrCat(what, " has no slot \"", array.name, "\" there");
    const std::string slot = absl::StrCat("the slot \"", array.name, "\" of ", what);
    if (other->format != array.format) {
      return Differ(slot, NameOf(other->format), NameOf(array.format));
    }
    const std::string shape = ShapeText(other->shape.value_or(saved.shape));
    const std::string expected_shape = ShapeText(array.shape.value_or(expected.shape));
    if (shape != expected_shape) {
      return Differ(absl::StrCat("the shape of ", slot), shape, expected_shape);
    }
  }
  for (const CheckpointArray& array : saved.arrays) {
    if (ArrayNamed(expected, array.name) == nullptr) {
      return absl::StrCat(what, " has the slot \"", array.name,
                          "\" in the checkpoint, and none here");
    }
  }
  size_t numbers = 0;
  for (const ParameterSlot& slot : slots) {
    if (slot.kind != SlotKind::kScalar) continue;
    ++numbers;
    if (saved.scalars.count(slot.name) == 0) {
      return absl::StrCat(what, " has no slot \"", slot.name, "\" there");
    }
  }
  return saved.scalars.size() == numbers
             ? ""
             : absl::StrCat(what, " has slots there that are one number, and not here");
}

absl::Status CheckSteps(const CheckpointManifest& saved) {
  StepNumber most = saved.step;
  for (const CheckpointParameter& each : saved.parameters) most = std::max(most, each.steps);
  if (most <= ShardLedger::kLastStep) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the checkpoint counts ", most, " steps, expected at most ", ShardLedger::kLastStep));
}

std::string DifferenceOf(const CheckpointParameter& saved, const CheckpointParameter& expected,
                         const std::vector<ParameterSlot>& slots) {
  const std::string what = absl::StrCat("parameter \"", EscapeName(expected.name), "\"");
  if (saved.group != expected.group) {
    return Differ(absl::StrCat("the param group of ", what), saved.group, expected.group);
  }
  if (saved.shape != expected.shape) {
    return Differ(absl::StrCat("the shape of ", what), ShapeText(saved.shape),
                  ShapeText(expected.shape));
  }
  if (saved.dtype != expected.dtype) {
    return Differ(absl::StrCat("the type of ", what), NameOf(saved.dtype), NameOf(expected.dtype));
  }
  return DifferenceOfSlots(what, saved, expected, slots);
}

std::string DifferenceOfGroups(const CheckpointManifest& saved, const StateLayout& layout) {
  if (saved.groups.size() != layout.groups->size()) {
    return Differ<size_t>("the number of param groups", saved.groups.size(), layout.groups->size());
  }
  for (size_t g = 0; g < saved.groups.size(); ++g) {
    const std::string& rule = (*layout.groups)[g].rule->spec().name;
    if (saved.groups[g].name == rule) continue;
    return Differ(absl::StrCat("the rule of param group ", g),
                  absl::StrCat("\"", EscapeName(saved.groups[g].name), "\""),
                  absl::StrCat("\"", rule, "\""));
  }
  return "";
}

// "2 of its 3 parameters fit: "a", "c"".
std::string FittingText(const NameList& fitting, int parameters) {
  return absl::StrCat(fitting.count(), " of its ", parameters, " parameters fit",
                      fitting.count() > 0 ? ": " : "", fitting.Text());
}

MatchedParameter Placed(int index, const CheckpointParameter& saved,
                        const std::vector<ParameterSlot>& slots) {
  const auto place = [&](const std::string& name) {
    return static_cast<int>(ArrayNamed(saved, name) - saved.arrays.data());
  };
  MatchedParameter matched;
  matched.saved = index;
  matched.values = place(kParameterArray);
  for (const ParameterSlot& slot : slots) {
    matched.arrays.push_back(slot.is_scalar() ? -1 : place(slot.name));
  }
  return matched;
}

}  // namespace

absl::StatusOr<CheckpointMatch> MatchCheckpoint(const CheckpointManifest& saved,
                                                const StateLayout& layout) {
  absl::Status steps = CheckSteps(saved);
  if (!steps.ok()) return steps;
  std::map<std::string, int> index_of;
  for (size_t p = 0; p < saved.parameters.size(); ++p) {
    index_of.emplace(saved.parameters[p].name, static_cast<int>(p));
  }
  std::string difference = DifferenceOfGroups(saved, layout);
  const bool same_groups = difference.empty();
  CheckpointMatch match;
  NameList fitting;
  for (int p = 0; p < layout.parameter_count(); ++p) {
    const int group = layout.owners->GroupOf(p);
    const std::vector<ParameterSlot> slots = layout.Slots(p);
    const CheckpointParameter expected =
        DescribeParameter(layout.parameter(p), group, (*layout.groups)[group], layout.state);
    const auto found = index_of.find(expected.name);
    const std::string here =
        found == index_of.end()
            ? absl::StrCat("parameter \"", EscapeName(expected.name), "\" is not in the checkpoint")
            : DifferenceOf(saved.parameters[found->second], expected, slots);
    if (difference.empty()) difference = here;
    if (!here.empty()) continue;
    match.parameters.push_back(Placed(found->second, saved.parameters[found->second], slots));
    if (same_groups) fitting.Add(EscapeName(expected.name));
    index_of.erase(found);
  }
  if (difference.empty() && !index_of.empty()) {
    difference = absl::StrCat("parameter \"", EscapeName(index_of.begin()->first),
                              "\" of the checkpoint is not the optimizer's");
  }
  if (!difference.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint is not of this optimizer: ", difference, "; ",
        FittingText(fitting, layout.parameter_count()),
        ". Construct it as the one that was saved; or load what fits by way of optshard-checkpoint "
        "export and load_state_dict()"));
  }
  std::vector<Hyperparameters> given;
  for (const GroupRule& group : saved.groups) given.push_back(group.hyperparameters);
  absl::StatusOr<std::vector<Hyperparameters>> all = ValidateForStep(*layout.groups, given);
  if (!all.ok()) return all.status();
  match.hyperparameters = *std::move(all);
  return match;
}

}  // namespace optshard
