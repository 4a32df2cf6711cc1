#include "client/owner/optimizer_parts.h"

#include <utility>

#include "client/status_error.h"

namespace optshard {

std::vector<std::vector<at::Tensor>> TensorsOf(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<std::vector<at::Tensor>> tensors;
  for (const torch::optim::OptimizerParamGroup& group : groups) tensors.push_back(group.params());
  return tensors;
}

OptimizerParts::OptimizerParts(const ParameterList& list, const OptimizerSpec& its_spec,
                               const std::vector<torch::optim::OptimizerParamGroup>& its_groups,
                               ClassGroups its_classes, OwnerLink* owner,
                               const ShardedOptimizerOptions* client)
    : spec(its_spec),
      classes(std::move(its_classes)),
      groups(spec, TensorsOf(its_groups), client->rank, classes),
      gradient_layouts(list, groups.updates(), spec.state.format),
      trainable(list),
      owners(ValueOrThrow(ParameterOwners::Make(list, spec.world_size, spec.policy))),
      state({owner, &owners, &classes, &groups.updates(), spec.state, client, list.tensors}) {}

}  // namespace optshard
