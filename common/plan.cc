#include "common/plan.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace optshard {

ReductionTree MakeReductionTree(absl::Span<const std::string> nodes) {
  ReductionTree tree;
  absl::flat_hash_map<absl::string_view, size_t> group_of;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    const auto [found, inserted] = group_of.try_emplace(nodes[rank], tree.node_groups.size());
    if (inserted) tree.node_groups.emplace_back();
    tree.node_groups[found->second].push_back(static_cast<Rank>(rank));
  }
  return tree;
}

absl::Status CheckReductionTree(const ReductionTree& tree, int world_size) {
  if (world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size ", world_size, ": expected at least 1"));
  }
  std::vector<bool> seen(world_size, false);
  for (size_t group = 0; group < tree.node_groups.size(); ++group) {
    if (tree.node_groups[group].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("reduction tree: node group ", group, " is empty"));
    }
    for (Rank rank : tree.node_groups[group]) {
      if (rank < 0 || rank >= world_size) {
        return absl::InvalidArgumentError(absl::StrCat("reduction tree: rank ", rank,
                                                       " in node group ", group, " is outside 0..",
                                                       world_size - 1));
      }
      if (seen[rank]) {
        return absl::InvalidArgumentError(
            absl::StrCat("reduction tree: rank ", rank, " stands in it more than once"));
      }
      seen[rank] = true;
    }
  }
  for (Rank rank = 0; rank < world_size; ++rank) {
    if (!seen[rank]) {
      return absl::InvalidArgumentError(absl::StrCat("reduction tree: rank ", rank, " is missing"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> MakePlan(Generation generation, const ParameterSpace& space,
                              PartitionPolicy policy, absl::Span<const std::string> nodes) {
  Plan plan;
  plan.generation = generation;
  plan.world_size = static_cast<int>(nodes.size());
  plan.policy = policy;
  absl::StatusOr<Partition> partition = MakePartition(space, plan.world_size, policy);
  if (!partition.ok()) return partition.status();
  plan.partition = *std::move(partition);
  plan.tree = MakeReductionTree(nodes);
  return plan;
}

}  // namespace optshard
