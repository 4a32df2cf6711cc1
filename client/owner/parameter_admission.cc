#include "client/owner/parameter_admission.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/replica/memory_choice.h"
#include "client/replica/replica_list.h"
#include "client/status_error.h"
#include "server/update/update_costs.h"

namespace optshard {
namespace {

using torch::optim::OptimizerParamGroup;

// Those of the present groups stay, so that the names of what is added do not depend on them. A
// parameter that is given twice has one.
std::vector<std::string> NamesWith(const ParameterSpace& present,
                                   const std::vector<at::Tensor>& added) {
  std::vector<std::string> names;
  for (int p = 0; p < present.parameter_count(); ++p) names.push_back(present.parameter(p).name);
  std::set<std::string> taken(names.begin(), names.end());
  std::map<const void*, std::string> named;
  int number = present.parameter_count();
  for (const at::Tensor& tensor : added) {
    const auto [entry, first_time] = named.emplace(tensor.unsafeGetTensorImpl(), std::string());
    while (first_time) {
      entry->second = absl::StrCat("parameter_", number++);
      if (taken.insert(entry->second).second) break;
    }
    names.push_back(entry->second);
  }
  return names;
}

ParameterSpace WithAdmissions(const ParameterSpace& present, const ParameterSpace& all) {
  std::vector<GroupSpec> groups = all.groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g].admission =
        g < present.groups().size() ? present.groups()[g].admission : present.admission_count();
  }
  return ParameterSpace(std::move(groups));
}

}  // namespace

ParameterAdmission AdmitGroup(const std::vector<OptimizerParamGroup>& present,
                              const OptimizerParamGroup& given, const RuleOptions& defaults,
                              const OptimizerSpec& spec, const ShardedOptimizerOptions& options) {
  ParameterAdmission admission{given, {}, {}, spec};
  OptimizerParamGroup& group = admission.group;
  const int number = static_cast<int>(present.size());
  group.set_options(std::make_unique<RuleOptions>(
      SayingWhere("param group", number, [&] { return RuleOptions::OfGroup(given, defaults); })));
  const auto& rule = static_cast<const RuleOptions&>(group.options());
  if (rule.factory() != nullptr) {
    throw StatusError(absl::UnimplementedError(absl::StrCat(
        "param group ", number, " is to be stepped by the optimizer class \"", rule.rule(),
        "\": only groups that a rule steps can be added; give the group "
        "at construction, or options of a rule of docs/rules.md")));
  }
  if (given.params().empty()) {
    throw StatusError(absl::InvalidArgumentError(
        absl::StrCat("param group ", number, " has no parameters: add it once it has some")));
  }
  std::vector<std::vector<at::Tensor>> tensors;
  for (const OptimizerParamGroup& each : present) tensors.push_back(each.params());
  tensors.push_back(given.params());
  ParameterList& list = admission.list;
  list = ValueOrThrow(MakeParameterList(tensors, NamesWith(spec.space, given.params())));
  if (options.main_gradients) ThrowIfError(UseMainGradients(list));
  // Those of the construction have been said.
  for (const OptimizerParamGroup& each : present) {
    if (each.params().empty()) list.warnings.erase(list.warnings.begin());
  }
  admission.spec.rules.push_back({rule.rule(), rule.values()});
  admission.spec.space =
      WithUpdateCosts(WithAdmissions(spec.space, list.space), admission.spec.rules);
  list.space = admission.spec.space;
  admission.added = ListOfAdmission(list, spec.space.admission_count());
  group.params() = admission.added.tensors;
  return admission;
}

absl::StatusOr<AddedMemory> MemoryForAdded(const ParameterList& added,
                                           const ShardedOptimizerOptions& options, bool linked,
                                           bool flat) {
  AddedMemory memory;
  if (!linked && !flat) return memory;
  absl::StatusOr<MemoryChoice> choice = ChooseMemory(options, added);
  if (!choice.ok()) return choice.status();
  memory.warning = choice->warning;
  if (linked) {
    if (choice->flat) return memory;
    return absl::InvalidArgumentError(absl::StrCat(
        WhatFlatMemoryBreaks(added),
        ", and would have to move to the memory that all ranks share, where the other parameters "
        "lie: give a tensor of its own that is contiguous, or set parameters_as_bucket_view when "
        "the optimizer is made, to true to have it moved, or to false to have all stay"));
  }
  if (!choice->flat) return memory;
  absl::StatusOr<FlatMemory> own = FlatMemory::Private(added.space);
  if (own.ok()) {
    memory.flat = *std::move(own);
    return memory;
  }
  if (!choice->may_stay) return own.status();
  memory.warning = absl::StrCat("the added tensors stay where they are: ", own.status().ToString());
  return memory;
}

}  // namespace optshard
