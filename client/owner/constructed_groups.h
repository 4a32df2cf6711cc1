// The param groups of an optimizer as they were when it was constructed, and what may have changed
// in them since.
#ifndef OPTSHARD_CLIENT_OWNER_CONSTRUCTED_GROUPS_H_
#define OPTSHARD_CLIENT_OWNER_CONSTRUCTED_GROUPS_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

#include "client/owner/class_groups.h"
#include "client/owner/parameter_addition.h"
#include "common/hyperparameters.h"
#include "common/ids.h"
#include "common/optimizer_spec.h"
#include "server/update/group_update.h"

namespace optshard {

// Errors are thrown as StatusError. Bound to the trainer's thread.
class ConstructedGroups {
 public:
  // `spec` and `tensors`, by group, are those of the construction; `classes` outlives this.
  // INVALID_ARGUMENT as ValidateGroups.
  ConstructedGroups(const OptimizerSpec& spec, std::vector<std::vector<at::Tensor>> tensors,
                    Rank rank, const ClassGroups& classes);

  // By group.
  const std::vector<GroupUpdate>& updates() const { return updates_; }

  // What was added at the ends of `groups` and of their parameters, which are else those of the
  // construction (AdditionsTo): called through torch::optim::Optimizer, where they are not virtual,
  // add_param_group and add_parameters succeed.
  std::vector<ParameterAddition> AddedTo(
      const std::vector<torch::optim::OptimizerParamGroup>& groups) const;

  // UNIMPLEMENTED as long as `groups` hold other parameters than at construction.
  void CheckParameters(const std::vector<torch::optim::OptimizerParamGroup>& groups) const;

  // Takes the hyperparameters of `groups`, whose parameters are those of the construction.
  // INVALID_ARGUMENT where a group has options of another rule or a value is out of range; then
  // those taken before stay.
  void TakeHyperparameters(const std::vector<torch::optim::OptimizerParamGroup>& groups);
  const std::vector<Hyperparameters>& taken() const { return taken_; }
  // The taken ones with the defaults of what they leave out.
  const std::vector<Hyperparameters>& complete() const { return complete_; }

 private:
  std::vector<Hyperparameters> HyperparametersOf(
      const std::vector<torch::optim::OptimizerParamGroup>& groups) const;

  const std::vector<std::vector<at::Tensor>> tensors_;  // by group
  const Rank rank_;
  const ClassGroups& classes_;
  const std::vector<GroupUpdate> updates_;
  std::vector<Hyperparameters> taken_;
  std::vector<Hyperparameters> complete_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_CONSTRUCTED_GROUPS_H_
