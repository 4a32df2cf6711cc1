// The plan of an optimizer: its partition, and the order in which gradients are summed. It follows
// from the optimizer's spec and the ranks' nodes alone, so every rank makes it itself. Its digest
// tells whether it is the same everywhere. The functions are thread-safe.
#ifndef OPTSHARD_COMMON_PLAN_H_
#define OPTSHARD_COMMON_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/partition.h"

namespace optshard {

// The order of summation: gradients are summed in rank order within each node group, then the sums
// of the groups in group order. It belongs to the plan and not to the data plane, so that every
// plane gives the same bits.
struct ReductionTree {
  std::vector<std::vector<Rank>> node_groups;

  friend bool operator==(const ReductionTree& a, const ReductionTree& b) {
    return a.node_groups == b.node_groups;
  }
};

// Puts the ranks with the same node name into one group. `nodes` is by rank. The groups are ordered
// by their lowest rank.
ReductionTree MakeReductionTree(absl::Span<const std::string> nodes);

// Checks that every rank from 0 to world_size - 1 is in exactly one group, and that no group is
// empty. INVALID_ARGUMENT naming the rank or the group otherwise.
absl::Status CheckReductionTree(const ReductionTree& tree, int world_size);

struct Plan {
  Generation generation = 0;
  int world_size = 0;
  PartitionPolicy policy = PartitionPolicy::kGreedy;
  Partition partition;
  ReductionTree tree;

  // XXH3 of all of it but the generation: equal for equal plans on every machine.
  uint64_t Digest() const;
};

// `nodes` has one name for each rank; their number is the world size. Errors as MakePartition.
absl::StatusOr<Plan> MakePlan(Generation generation, const ParameterSpace& space,
                              PartitionPolicy policy, absl::Span<const std::string> nodes);
// The same with the tree that MakeReductionTree makes of the nodes.
absl::StatusOr<Plan> MakePlan(Generation generation, const ParameterSpace& space,
                              PartitionPolicy policy, int world_size, ReductionTree tree);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_PLAN_H_
