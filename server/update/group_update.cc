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
#include "server/update/state_support.h"

namespace optshard {
namespace {

absl::Status CheckParameters(const UpdateRule& rule, const GroupSpec& group) {
  for (const ParameterSpec& parameter : group.parameters) {
    const absl::Status status = rule.CheckParameter(parameter.shape);
    if (status.ok()) continue;
    return errors::WithContext(status,
                               absl::StrCat("parameter \"", parameter.name, "\" of the shape [",
                                            absl::StrJoin(parameter.shape, ", "), "]"));
  }
  return absl::OkStatus();
}

absl::StatusOr<GroupUpdate> ValidateGroup(const GroupRule& given, PartitionPolicy policy,
                                          StateFormat state) {
  GroupUpdate group;
  const absl::StatusOr<const UpdateRule*> rule = RuleRegistry::Find(given.name);
  if (!rule.ok()) return rule.status();
  group.rule = *rule;
  if (!group.rule->spec().element_wise && policy == PartitionPolicy::kBalanced) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the rule \"%s\" needs whole parameters, which the partition policy \"%s\" cuts; use "
        "\"greedy\", or give the group an element-wise rule",
        given.name, NameOf(policy)));
  }
  absl::Status format = CheckStateFormat(*group.rule, state);
  if (!format.ok()) return format;
  absl::StatusOr<Hyperparameters> values = group.rule->Validate(given.hyperparameters);
  if (!values.ok()) return values.status();
  group.hyperparameters = *std::move(values);
  return group;
}

}  // namespace

absl::StatusOr<std::vector<GroupUpdate>> ValidateGroups(const OptimizerSpec& spec) {
  std::vector<GroupUpdate> groups;
  for (size_t g = 0; g < spec.rules.size(); ++g) {
    absl::StatusOr<GroupUpdate> group =
        ValidateGroup(spec.rules[g], spec.policy, spec.state.format);
    if (!group.ok()) {
      return errors::WithContext(group.status(), absl::StrCat("param group ", g));
    }
    if (g < spec.space.groups().size()) {
      const absl::Status parameters = CheckParameters(*group->rule, spec.space.groups()[g]);
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
