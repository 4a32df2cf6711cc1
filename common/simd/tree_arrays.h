// The arrays of all leaves of a reduction tree, in types that have no functions: for code that is
// compiled once for every instruction set (server/update/element_wise_rule.h says why).
#ifndef OPTSHARD_COMMON_SIMD_TREE_ARRAYS_H_
#define OPTSHARD_COMMON_SIMD_TREE_ARRAYS_H_

#include <cstdint>

namespace optshard {

struct TreeArrays {
  // By position in the order of the tree: the members of its first group, then of the second, ...
  // Null counts as zeros.
  const void* const* arrays = nullptr;
  int count = 0;
  const int* group_sizes = nullptr;
  int groups = 0;
  int divisor = 1;    // of the sum: `count` in an average
  int64_t first = 0;  // element i is arrays[k][first + i]
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_SIMD_TREE_ARRAYS_H_
