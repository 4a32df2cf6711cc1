// The arithmetic of Reduce: the average of all ranks' values in the order of the reduction tree.
// Pure functions; every plane that sums on hosts uses them, so their bits are equal.
#ifndef OPTSHARD_COMMON_DATAPLANE_TREE_AVERAGE_H_
#define OPTSHARD_COMMON_DATAPLANE_TREE_AVERAGE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/plan.h"

namespace optshard {

// UNIMPLEMENTED, naming the type, where TreeAverage cannot sum `dtype` (float16 and bfloat16).
absl::Status CheckReducible(DType dtype);

// result[i] = (the sum of contributions[rank][i]: in rank order within each node group, then of
// the groups' sums in group order) / world size, in one IEEE division; accumulated in the type
// itself (float32, float64), in the default floating-point mode. `contributions` has one array a
// rank. `result` may be one of them. Requires a checked tree and a reducible dtype.
void TreeAverage(const ReductionTree& tree, DType dtype,
                 absl::Span<const void* const> contributions, int64_t elements, void* result);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_TREE_AVERAGE_H_
