// The arithmetic of Reduce: averages the values of all ranks in the order of the reduction tree.
// Every data plane that sums on the host uses these functions, so that all give the same bits. They
// are pure and thread-safe.
#ifndef OPTSHARD_COMMON_DATAPLANE_TREE_AVERAGE_H_
#define OPTSHARD_COMMON_DATAPLANE_TREE_AVERAGE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/plan.h"

namespace optshard {

// UNIMPLEMENTED naming the type where TreeAverage cannot sum it: float16 and bfloat16.
absl::Status CheckReducible(DType dtype);

// For each element: sums the ranks' values in rank order within each node group, then the sums of
// the groups in group order, and divides once by the world size. Everything is computed in `dtype`
// itself, in the default floating-point mode. `contributions` has one array of `elements` values
// for each rank. `result` may be one of these arrays. Requires CheckReductionTree and
// CheckReducible to be OK.
void TreeAverage(const ReductionTree& tree, DType dtype,
                 absl::Span<const void* const> contributions, int64_t elements, void* result);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_TREE_AVERAGE_H_
