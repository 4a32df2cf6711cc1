// The param groups of an optimizer that classes step, instead of rules.
#ifndef OPTSHARD_CLIENT_OWNER_CLASS_GROUPS_H_
#define OPTSHARD_CLIENT_OWNER_CLASS_GROUPS_H_

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "client/owner/class_update.h"
#include "client/replica/parameter_list.h"
#include "client/replica/parameter_owners.h"
#include "client/rule_options.h"
#include "common/hyperparameters.h"
#include "common/ids.h"
#include "server/update/trainer_update.h"

namespace optshard {

// Errors are thrown as StatusError. Bound to the trainer's thread.
class ClassGroups {
 public:
  // The options of `groups` are RuleOptions.
  explicit ClassGroups(const std::vector<torch::optim::OptimizerParamGroup>& groups);

  // A group at the end that a rule steps. Of a copy: it has the same optimizers.
  void AddRuleGroup() {
    classes_.push_back(nullptr);
    updates_.push_back(nullptr);
  }

  // By group; null where a rule steps it.
  const std::vector<std::shared_ptr<TrainerUpdate>>& updates() const { return updates_; }

  // Makes this rank's optimizers, once the parameters have their first values, and gives them to
  // the options of `groups`. INVALID_ARGUMENT as ClassUpdate::Make.
  void Make(const ParameterList& list, const ParameterOwners& owners, Rank rank,
            std::vector<torch::optim::OptimizerParamGroup>& groups);

  // This rank's. INVALID_ARGUMENT where the group is none, or a rule steps it.
  torch::optim::Optimizer& OptimizerOf(int group) const;

  // What the ranks compare in a step. INVALID_ARGUMENT where a class steps the group, and `options`
  // are not those that Make has seen, or copies.
  Hyperparameters ValuesOf(size_t group, const RuleOptions& options) const;

  // UNIMPLEMENTED, saying where the state is instead, for a parameter that a class steps;
  // INVALID_ARGUMENT as ParameterOwners::IndexOf.
  void CheckStateIsKnown(const ParameterOwners& owners, const at::Tensor& parameter) const;

 private:
  std::vector<std::shared_ptr<ClassUpdate>> classes_;    // by group; null where a rule steps it
  std::vector<std::shared_ptr<TrainerUpdate>> updates_;  // the same
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_CLASS_GROUPS_H_
