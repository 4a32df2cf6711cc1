// The arithmetic of Reduce: sums values in the order of a tree and divides. Every data plane that
// sums on the host uses these functions, so that all give the same bits. They are pure and
// thread-safe.
#ifndef OPTSHARD_COMMON_DATAPLANE_TREE_AVERAGE_H_
#define OPTSHARD_COMMON_DATAPLANE_TREE_AVERAGE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/dtype.h"

namespace optshard {

// For each element: sums the values within each group in their order, then the sums of the groups
// in group order, and divides once. Everything is computed in ArithmeticOf(dtype), in the default
// floating-point mode, and so is the result: the average of 16-bit values is not rounded to 16
// bits. `contributions` are given group after group, each from element `first` on. Null counts as
// zeros. Dividing by 1 changes no bit. `result` may be where one of these begins (with `first`)
// where `dtype` is what is computed in.
void ReduceGroups(absl::Span<const int> group_sizes, int divisor, DType dtype,
                  absl::Span<const void* const> contributions, int64_t first, int64_t elements,
                  void* result);

// Divides by the number of contributions.
inline void AverageOfGroups(absl::Span<const int> group_sizes, DType dtype,
                            absl::Span<const void* const> contributions, int64_t first,
                            int64_t elements, void* result) {
  ReduceGroups(group_sizes, static_cast<int>(contributions.size()), dtype, contributions, first,
               elements, result);
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_TREE_AVERAGE_H_
