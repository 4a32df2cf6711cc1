// A reduction tree in few numbers, as messages carry it. Launchers number the ranks node by node,
// so that one run of three numbers says it all, or round robin over the nodes, with a run a round.
// Ranks in no such order take at most a run each. The functions are pure and thread-safe.
#ifndef OPTSHARD_COMMON_NODE_RUNS_H_
#define OPTSHARD_COMMON_NODE_RUNS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/plan.h"

namespace optshard {

// The next ranks_per_group * groups ranks: so many for each of the node groups first_group,
// first_group + 1, ... in turn.
struct NodeRun {
  uint32_t first_group = 0;
  uint32_t ranks_per_group = 0;
  uint32_t groups = 0;
};

// `tree` is of MakeReductionTree.
std::vector<NodeRun> NodeRunsOf(const ReductionTree& tree);

// The tree of these runs. INVALID_ARGUMENT where they are not of `world_size` ranks, or not of a
// tree that MakeReductionTree makes. Takes memory for world_size ranks at most.
absl::StatusOr<ReductionTree> ReductionTreeOf(absl::Span<const NodeRun> runs, int world_size);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_NODE_RUNS_H_
