#include "server/update/group_update.h"

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "common/group_rule.h"
#include "common/parameter_space.h"
#include "common/partition.h"
#include "common/state_format.h"
#include "common/state_options.h"
#include "server/update/state_support.h"

namespace optshard {
namespace {

absl::Status CheckParameters(const UpdateRule& rule, const GroupSpec& group) {
  for (const ParameterSpec& parameter : group.parameters) {
    const absl::Status dtype = rule.CheckDType(parameter.dtype);
    if (!dtype.ok()) {
      return errors::WithContext(dtype, absl::StrCat("parameter \"", parameter.name,
                                                     "\" of the type ", NameOf(parameter.dtype)));
    }
    const absl::Status shape = rule.CheckParameter(parameter.shape);
    if (shape.ok()) continue;
    return errors::WithContext(shape,
                               absl::StrCat("parameter \"", parameter.name, "\" of the shape [",
                                            absl::StrJoin(parameter.shape, ", "), "]"));
  }
  return absl::OkStatus();
}

// What a rule does for slots and masters is not done for state that nobody sees.
absl::Status CheckStateIsIts(const UpdateRule& rule, const StateOptions& state) {
  std::string option;
  if (state.master_weights) {
    option = "master_weights";
  } else if (state.MayHaveMasters()) {
    option = absl::StrCat("publish_dtype \"", NameOf(state.publish_dtype), "\"");
  } else if (state.format != StateFormat::kFloat32) {
    option = absl::StrCat("state_dtype \"", NameOf(state.format), "\"");
  } else {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "\"%s\" keeps its state itself, so that %s cannot be had with it; leave that option out, or "
      "give the group one of the rules of docs/rules.md",
      rule.spec().name, option));
}

// Main gradients are dense, and a tensor's own gradient is of its type.
absl::Status CheckMainGradients(const UpdateRule& rule, bool is_trainers, const GroupSpec& group) {
  const bool takes_dense = rule.spec().sparse_gradients != SparseGradients::kOnly;
  if (takes_dense && !is_trainers) return absl::OkStatus();
  for (const ParameterSpec& parameter : group.parameters) {
    if (!parameter.main_gradient) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\" takes %s, so that main_gradients cannot be had with it (parameter \"%s\" is %s); "
        "leave that option out, or give the group another one of the rules of docs/rules.md",
        rule.spec().name,
        takes_dense ? "gradients of the parameter's type" : "sparse gradients only", parameter.name,
        NameOf(parameter.dtype)));
  }
  return absl::OkStatus();
}

absl::StatusOr<GroupUpdate> ValidateGroup(const GroupRule& given, TrainerUpdate* trainer_update,
                                          PartitionPolicy policy, const StateOptions& state) {
  GroupUpdate group;
  group.trainer_update = trainer_update;
  if (trainer_update != nullptr) {
    group.rule = &trainer_update->rule();
    absl::Status kept = CheckStateIsIts(*group.rule, state);
    if (!kept.ok()) return kept;
  } else {
    const absl::StatusOr<const UpdateRule*> rule = RuleRegistry::Find(given.name);
    if (!rule.ok()) return rule.status();
    group.rule = *rule;
  }
  if (!group.rule->spec().element_wise && policy == PartitionPolicy::kBalanced) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the rule \"%s\" needs whole parameters, which the partition policy \"%s\" cuts; use "
        "\"greedy\", or give the group an element-wise rule",
        given.name, NameOf(policy)));
  }
  absl::Status format = CheckStateFormat(*group.rule, state.format);
  if (!format.ok()) return format;
  absl::StatusOr<Hyperparameters> values = group.rule->Validate(given.hyperparameters);
  if (!values.ok()) return values.status();
  group.hyperparameters = *std::move(values);
  return group;
}

}  // namespace

absl::StatusOr<std::vector<GroupUpdate>> ValidateGroups(
    const OptimizerSpec& spec, absl::Span<const std::shared_ptr<TrainerUpdate>> trainer_updates) {
  std::vector<GroupUpdate> groups;
  for (size_t g = 0; g < spec.rules.size(); ++g) {
    TrainerUpdate* const trainer_update =
        trainer_updates.empty() ? nullptr : trainer_updates[g].get();
    absl::StatusOr<GroupUpdate> group =
        ValidateGroup(spec.rules[g], trainer_update, spec.policy, spec.state);
    if (!group.ok()) {
      return errors::WithContext(group.status(), absl::StrCat("param group ", g));
    }
    if (g < spec.space.groups().size()) {
      absl::Status parameters = CheckParameters(*group->rule, spec.space.groups()[g]);
      parameters.Update(
          CheckMainGradients(*group->rule, trainer_update != nullptr, spec.space.groups()[g]));
      if (!parameters.ok()) {
        return errors::WithContext(parameters, absl::StrCat("param group ", g));
      }
    }
    groups.push_back(*std::move(group));
  }
  return groups;
}

std::vector<Hyperparameters> HyperparametersOf(absl::Span<const GroupUpdate> groups) {
  std::vector<Hyperparameters> hyperparameters;
  hyperparameters.reserve(groups.size());
  for (const GroupUpdate& group : groups) hyperparameters.push_back(group.hyperparameters);
  return hyperparameters;
}

std::vector<std::vector<Slot>> SlotsOf(absl::Span<const GroupUpdate> groups) {
  std::vector<std::vector<Slot>> slots;
  slots.reserve(groups.size());
  for (const GroupUpdate& group : groups) slots.push_back(group.rule->Slots(group.hyperparameters));
  return slots;
}

}  // namespace optshard
