#include "client/owner/parameter_admission.h"

#include <algorithm>
#include <iterator>
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

// By position, with the added tensors at the end of group `number`. Those that are there keep
// theirs, and what is added has names that do not depend on them. A parameter that is given twice
// has one.
std::vector<std::string> NamesWith(const ParameterSpace& present, size_t number,
                                   const std::vector<at::Tensor>& added) {
  std::set<std::string> taken;
  std::vector<std::vector<std::string>> names(std::max(present.groups().size(), number + 1));
  for (size_t g = 0; g < present.groups().size(); ++g) {
    for (const ParameterSpec& parameter : present.groups()[g].parameters) {
      names[g].push_back(parameter.name);
      taken.insert(parameter.name);
    }
  }
  std::map<const void*, std::string> named;
  int next = present.parameter_count();
  for (const at::Tensor& tensor : added) {
    const auto [entry, first_time] = named.emplace(tensor.unsafeGetTensorImpl(), std::string());
    while (first_time) {
      entry->second = absl::StrCat("parameter_", next++);
      if (taken.insert(entry->second).second) break;
    }
    names[number].push_back(entry->second);
  }
  std::vector<std::string> all;
  for (std::vector<std::string>& of_group : names) {
    std::move(of_group.begin(), of_group.end(), std::back_inserter(all));
  }
  return all;
}

// `all` is the present space with more at the end of group `number`, which may be a new one.
ParameterSpace WithAdmissions(const ParameterSpace& present, const ParameterSpace& all,
                              size_t number) {
  const int admission = present.admission_count();
  std::vector<GroupSpec> groups = all.groups();
  for (size_t g = 0; g < present.groups().size(); ++g) {
    groups[g].admission = present.groups()[g].admission;
    groups[g].additions = present.groups()[g].additions;
  }
  if (number == present.groups().size()) {
    groups[number].admission = admission;
  } else {
    const auto first = static_cast<int>(present.groups()[number].parameters.size());
    groups[number].additions.push_back({first, admission});
  }
  return ParameterSpace(std::move(groups));
}

// With the options that the added group is to have; parameters have those of their group.
OptimizerParamGroup CheckedGroup(const std::vector<OptimizerParamGroup>& present,
                                 const ParameterAddition& given, const RuleOptions& defaults,
                                 int number) {
  OptimizerParamGroup group = given.given;
  const OptimizerParamGroup& with_options = given.to.has_value() ? present[number] : group;
  const RuleOptions rule = SayingWhere(
      "param group", number, [&] { return RuleOptions::OfGroup(with_options, defaults); });
  if (rule.factory() != nullptr) {
    throw StatusError(absl::UnimplementedError(absl::StrCat(
        "param group ", number, given.to.has_value() ? " is" : " is to be",
        " stepped by the optimizer class \"", rule.rule(), "\": only groups that a rule steps ",
        given.to.has_value()
            ? "get more parameters; give them at construction, or a group of their own"
            : "can be added; give the group at construction, or options of a rule of "
              "docs/rules.md")));
  }
  if (group.params().empty()) {
    throw StatusError(absl::InvalidArgumentError(
        given.to.has_value()
            ? absl::StrCat("no parameters are to be added to param group ", number,
                           ": call it once there are some")
            : absl::StrCat("param group ", number, " has no parameters: add it once it has some")));
  }
  if (!given.to.has_value()) group.set_options(std::make_unique<RuleOptions>(rule));
  return group;
}

// In another group it is found with all other checks.
void CheckNew(const std::vector<at::Tensor>& present, const std::vector<at::Tensor>& added,
              int number) {
  std::map<const void*, size_t> there;
  for (const at::Tensor& tensor : present) {
    there.emplace(tensor.unsafeGetTensorImpl(), there.size());
  }
  for (size_t i = 0; i < added.size(); ++i) {
    const auto found = there.find(added[i].unsafeGetTensorImpl());
    if (found == there.end()) continue;
    throw StatusError(absl::InvalidArgumentError(
        absl::StrCat("number ", i, " of the parameters to be added is number ", found->second,
                     " of param group ", number, " already: leave it out")));
  }
}

}  // namespace

ParameterAdmission Admit(const std::vector<OptimizerParamGroup>& present,
                         const ParameterAddition& given, const RuleOptions& defaults,
                         const OptimizerSpec& spec, const ShardedOptimizerOptions& options) {
  const auto count = static_cast<int>(present.size());
  const int number = given.to.value_or(count);
  if (given.to.has_value() && (number < 0 || number >= count)) {
    throw StatusError(absl::InvalidArgumentError(
        absl::StrCat("there is no param group ", number, " to add parameters to: there are ", count,
                     "; a new one is added by add_param_group()")));
  }
  ParameterAdmission admission{
      {CheckedGroup(present, given, defaults, number), given.to}, {}, {}, spec};
  std::vector<std::vector<at::Tensor>> tensors;
  for (const OptimizerParamGroup& each : present) tensors.push_back(each.params());
  tensors.resize(std::max(tensors.size(), static_cast<size_t>(number) + 1));
  CheckNew(tensors[number], given.parameters(), number);
  tensors[number].insert(tensors[number].end(), given.parameters().begin(),
                         given.parameters().end());
  ParameterList& list = admission.list;
  list =
      ValueOrThrow(MakeParameterList(tensors, NamesWith(spec.space, number, given.parameters())));
  if (options.main_gradients) ThrowIfError(UseMainGradients(list));
  list.empty_group_warnings.clear();  // the construction has warned of them
  if (!given.to.has_value()) {
    const auto& rule = static_cast<const RuleOptions&>(admission.addition.given.options());
    admission.spec.rules.push_back({rule.rule(), rule.values()});
  }
  admission.spec.space =
      WithUpdateCosts(WithAdmissions(spec.space, list.space, number), admission.spec.rules);
  list.space = admission.spec.space;
  std::vector<at::Tensor> by_position = std::move(list.tensors);
  list.tensors.clear();
  for (int p = 0; p < list.space.parameter_count(); ++p) {
    list.tensors.push_back(by_position[list.space.position_of(p)]);
  }
  admission.added = ListOfAdmission(list, spec.space.admission_count());
  admission.addition.given.params() = admission.added.tensors;
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
  absl::StatusOr<FlatMemory> own = FlatMemory::Private(added);
  if (own.ok()) {
    memory.flat = *std::move(own);
    return memory;
  }
  if (!choice->may_stay) return own.status();
  memory.warning = absl::StrCat("the added tensors stay where they are: ", own.status().ToString());
  return memory;
}

}  // namespace optshard
