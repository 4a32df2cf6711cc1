#include "common/plan.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/digest.h"

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

uint64_t Plan::Digest() const {
  DigestBuilder digest("optshard.Plan");
  digest.AddInt(world_size).AddInt(static_cast<int64_t>(policy));
  digest.AddInt(static_cast<int64_t>(partition.slices.size()));
  for (const std::vector<Slice>& slices : partition.slices) {
    digest.AddInt(static_cast<int64_t>(slices.size()));
    for (const Slice& slice : slices) {
      digest.AddInt(slice.parameter).AddInt(slice.offset_elements).AddInt(slice.elements);
    }
  }
  digest.AddInt(static_cast<int64_t>(tree.node_groups.size()));
  for (const std::vector<Rank>& group : tree.node_groups) {
    digest.AddInt(static_cast<int64_t>(group.size()));
    for (const Rank rank : group) digest.AddInt(rank);
  }
  return digest.value();
}

absl::StatusOr<Plan> MakePlan(Generation generation, const ParameterSpace& space,
                              PartitionPolicy policy, absl::Span<const std::string> nodes) {
  return MakePlan(generation, space, policy, static_cast<int>(nodes.size()),
                  MakeReductionTree(nodes));
}

absl::StatusOr<Plan> MakePlan(Generation generation, const ParameterSpace& space,
                              PartitionPolicy policy, int world_size, ReductionTree tree) {
  Plan plan;
  plan.generation = generation;
  plan.world_size = world_size;
  plan.policy = policy;
  absl::StatusOr<Partition> partition = MakePartition(space, plan.world_size, policy);
  if (!partition.ok()) return partition.status();
  plan.partition = *std::move(partition);
  plan.tree = std::move(tree);
  return plan;
}

}  // namespace optshard
