// The plan of an optimizer: the partition and the order in which gradients are summed. The
// coordinator makes it; all ranks work by the same one.
#ifndef OPTSHARD_COMMON_PLAN_H_
#define OPTSHARD_COMMON_PLAN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/partition.h"

namespace optshard {

// Gradients are summed in rank order within each node group, then the groups' sums in group order.
// Part of the plan, not of the plane: every plane gives the same bits.
struct ReductionTree {
  std::vector<std::vector<Rank>> node_groups;

  friend bool operator==(const ReductionTree& a, const ReductionTree& b) {
    return a.node_groups == b.node_groups;
  }
};

// Groups the ranks by node name (nodes[rank]); groups are ordered by their lowest rank.
ReductionTree MakeReductionTree(absl::Span<const std::string> nodes);

// That every rank 0..world_size-1 stands in it exactly once and no group is empty.
absl::Status CheckReductionTree(const ReductionTree& tree, int world_size);

struct Plan {
  Generation generation = 0;
  int world_size = 0;
  PartitionPolicy policy = PartitionPolicy::kGreedy;
  Partition partition;
  ReductionTree tree;
};

// INVALID_ARGUMENT for a bad space or world size; nodes has one name a rank.
absl::StatusOr<Plan> MakePlan(Generation generation, const ParameterSpace& space,
                              PartitionPolicy policy, absl::Span<const std::string> nodes);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_PLAN_H_
