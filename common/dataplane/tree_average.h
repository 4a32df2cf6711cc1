// The arithmetic of Reduce: averages the values of all ranks in the order of the reduction tree.
// Every data plane that sums on the host uses these functions, so that all give the same bits. They
// are pure and thread-safe.
#ifndef OPTSHARD_COMMON_DATAPLANE_TREE_AVERAGE_H_
#define OPTSHARD_COMMON_DATAPLANE_TREE_AVERAGE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/plan.h"

namespace optshard {

// For each element: sums the ranks' values in rank order within each node group, then the sums of
// the groups in group order, and divides once by the world size. Everything is computed in
// ArithmeticOf(dtype), in the default floating-point mode, and so is the result: the average of
// 16-bit values is not rounded to 16 bits. `contributions` has one array of `elements` values for
// each rank. `result` may be one of these arrays where `dtype` is what is computed in. Requires
// CheckReductionTree to be OK.
void TreeAverage(const ReductionTree& tree, DType dtype,
                 absl::Span<const void* const> contributions, int64_t elements, void* result);

// The same for contributions that are given group after group, in the order of the tree, each from
// element `first` on. Null counts as zeros.
void AverageOfGroups(absl::Span<const int> group_sizes, DType dtype,
                     absl::Span<const void* const> contributions, int64_t first, int64_t elements,
                     void* result);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_TREE_AVERAGE_H_
