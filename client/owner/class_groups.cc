#include "client/owner/class_groups.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/status_error.h"

namespace optshard {

using torch::optim::OptimizerParamGroup;

ClassGroups::ClassGroups(const std::vector<OptimizerParamGroup>& groups) {
  for (const OptimizerParamGroup& group : groups) {
    const auto& options = static_cast<const RuleOptions&>(group.options());
    classes_.push_back(options.factory() == nullptr
                           ? nullptr
                           : std::make_shared<ClassUpdate>(options.rule(), options.factory()));
    updates_.push_back(classes_.back());
  }
}

void ClassGroups::Make(const ParameterList& list, const ParameterOwners& owners, Rank rank,
                       std::vector<OptimizerParamGroup>& groups) {
  std::vector<std::map<int, at::Tensor>> owned(classes_.size());  // by group, by parameter index
  for (int p = 0; p < list.space.parameter_count(); ++p) {
    if (owners.PartOf(p, rank).has_value()) owned[list.space.group_of(p)][p] = list.tensors[p];
  }
  for (size_t g = 0; g < classes_.size(); ++g) {
    if (classes_[g] == nullptr) continue;
    SayingWhere("rank", rank, [&] {
      SayingWhere("param group", g, [&] { ThrowIfError(classes_[g]->Make(owned[g])); });
    });
    static_cast<RuleOptions&>(groups[g].options()).Drive(classes_[g]->optimizer());
  }
}

torch::optim::Optimizer& ClassGroups::OptimizerOf(int group) const {
  const bool is_group = group >= 0 && group < static_cast<int>(classes_.size());
  if (is_group && classes_[group] != nullptr) return *classes_[group]->optimizer();
  throw StatusError(absl::InvalidArgumentError(
      is_group ? absl::StrCat("param group ", group,
                              " is stepped by a rule, not by an optimizer of its own: its options "
                              "are in param_groups(), its state is in state()")
               : absl::StrCat("there is no param group ", group, "; there are ", classes_.size())));
}

Hyperparameters ClassGroups::ValuesOf(size_t group, const RuleOptions& options) const {
  if (classes_[group] == nullptr) return options.values();
  if (options.Drives(*classes_[group]->optimizer())) return classes_[group]->Readable();
  throw StatusError(absl::InvalidArgumentError(
      absl::StrCat("param group ", group, " has been given other options of the optimizer class \"",
                   options.rule(),
                   "\", but keeps the object that steps it: change the options of local_optimizer(",
                   group, "), and give the group back its own")));
}

void ClassGroups::CheckStateIsKnown(const ParameterOwners& owners,
                                    const at::Tensor& parameter) const {
  const int group = owners.GroupOf(ValueOrThrow(owners.IndexOf(parameter)));
  if (classes_[group] == nullptr) return;
  throw StatusError(absl::UnimplementedError(
      absl::StrCat("param group ", group, " is stepped by \"", classes_[group]->rule().spec().name,
                   "\", and what that class keeps has no names that are known here: look into "
                   "local_optimizer(",
                   group, ").state()")));
}

}  // namespace optshard
