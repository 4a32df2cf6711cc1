// Whose values a reduction sums, in which order, and by what it divides the sum.
#ifndef OPTSHARD_COMMON_DATAPLANE_REDUCTION_H_
#define OPTSHARD_COMMON_DATAPLANE_REDUCTION_H_

#include <algorithm>
#include <vector>

#include "common/ids.h"
#include "common/plan.h"

namespace optshard {

// The values of each group are summed in the order of its members, then the groups' sums in the
// order of the groups. Thread-compatible.
struct Reduction {
  Rank owner = 0;                // gets the result; one of the members
  std::vector<Rank> members;     // group after group
  std::vector<int> group_sizes;  // none is 0; their sum is the number of members
  int divisor = 1;               // of the sum

  bool Has(Rank rank) const {
    return std::find(members.begin(), members.end(), rank) != members.end();
  }
};

// The average over all ranks of the tree.
inline Reduction AverageOver(const ReductionTree& tree, Rank owner) {
  Reduction reduction;
  reduction.owner = owner;
  for (const std::vector<Rank>& group : tree.node_groups) {
    reduction.members.insert(reduction.members.end(), group.begin(), group.end());
    reduction.group_sizes.push_back(static_cast<int>(group.size()));
  }
  reduction.divisor = static_cast<int>(reduction.members.size());
  return reduction;
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_REDUCTION_H_
