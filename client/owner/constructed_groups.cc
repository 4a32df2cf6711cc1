#include "client/owner/constructed_groups.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/param_group_change.h"
#include "client/rule_options.h"
#include "client/status_error.h"
#include "server/update/step_hyperparameters.h"
#include "server/update/update_rule.h"

namespace optshard {

using torch::optim::OptimizerParamGroup;

ConstructedGroups::ConstructedGroups(const OptimizerSpec& spec,
                                     std::vector<std::vector<at::Tensor>> tensors, Rank rank,
                                     const ClassGroups& classes)
    : tensors_(std::move(tensors)),
      rank_(rank),
      classes_(classes),
      updates_(ValueOrThrow(ValidateGroups(spec, classes.updates()))) {}

std::vector<ParameterAddition> ConstructedGroups::AddedTo(
    const std::vector<OptimizerParamGroup>& groups) const {
  return AdditionsTo(tensors_, groups);
}

void ConstructedGroups::CheckParameters(const std::vector<OptimizerParamGroup>& groups) const {
  const std::string change = DescribeGroupChange(groups, tensors_);
  if (change.empty()) return;
  throw StatusError(absl::UnimplementedError(absl::StrCat(
      "rank ", rank_, ": ", change,
      ", but what is there keeps its parameters. Undo the change to param_groups(), and "
      "this one goes on; to add a group or parameters, call add_param_group() or add_parameters() "
      "of the ShardedOptimizer on all ranks, or step(), which takes what was added at the end")));
}

void ConstructedGroups::TakeHyperparameters(const std::vector<OptimizerParamGroup>& groups) {
  SayingWhere("rank", rank_, [&] {
    std::vector<Hyperparameters> given = HyperparametersOf(groups);
    if (given == taken_) return;
    complete_ = ValueOrThrow(ValidateForStep(updates_, given));
    taken_ = std::move(given);
  });
}

std::vector<Hyperparameters> ConstructedGroups::HyperparametersOf(
    const std::vector<OptimizerParamGroup>& groups) const {
  std::vector<Hyperparameters> result;
  for (size_t g = 0; g < groups.size(); ++g) {
    const RuleOptions options =
        SayingWhere("param group", g, [&] { return RuleOptions::From(groups[g].options()); });
    const std::string& rule = updates_[g].rule->spec().name;
    if (options.rule() != rule) {
      throw StatusError(absl::InvalidArgumentError(absl::StrCat(
          "the options of param group ", g, " have become those of the rule \"", options.rule(),
          "\", but a group keeps the rule that it was constructed with, here \"", rule,
          "\"; give it options of that rule, or make another optimizer")));
    }
    result.push_back(classes_.ValuesOf(g, options));
  }
  return result;
}

}  // namespace optshard
