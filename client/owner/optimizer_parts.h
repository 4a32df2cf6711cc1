// What follows from an optimizer's param groups, on the trainer's side: made anew when groups are
// added.
#ifndef OPTSHARD_CLIENT_OWNER_OPTIMIZER_PARTS_H_
#define OPTSHARD_CLIENT_OWNER_OPTIMIZER_PARTS_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

#include "client/owner/class_groups.h"
#include "client/owner/constructed_groups.h"
#include "client/owner/optimizer_state.h"
#include "client/owner/owner_link.h"
#include "client/replica/gradient_layouts.h"
#include "client/replica/parameter_list.h"
#include "client/replica/parameter_owners.h"
#include "client/replica/trainable_watch.h"
#include "client/sharded_optimizer_options.h"
#include "common/optimizer_spec.h"

namespace optshard {

// By group.
std::vector<std::vector<at::Tensor>> TensorsOf(
    const std::vector<torch::optim::OptimizerParamGroup>& groups);

// Bound to the trainer's thread.
struct OptimizerParts {
  // `its_groups` have the list's parameters. `owner` and `client` outlive this. Throws StatusError:
  // INVALID_ARGUMENT as ValidateGroups and MakePartition.
  OptimizerParts(const ParameterList& list, const OptimizerSpec& its_spec,
                 const std::vector<torch::optim::OptimizerParamGroup>& its_groups,
                 ClassGroups its_classes, OwnerLink* owner, const ShardedOptimizerOptions* client);
  OptimizerParts(const OptimizerParts&) = delete;
  OptimizerParts& operator=(const OptimizerParts&) = delete;

  const OptimizerSpec spec;
  ClassGroups classes;
  ConstructedGroups groups;
  const GradientLayouts gradient_layouts;
  TrainableWatch trainable;
  const ParameterOwners owners;
  OptimizerState state;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_OPTIMIZER_PARTS_H_
