// Norms of arrays, with the same bits on every machine.
#ifndef OPTSHARD_COMMON_SIMD_NORMS_H_
#define OPTSHARD_COMMON_SIMD_NORMS_H_

#include <cstdint>

#include "common/buffer.h"

namespace optshard {

constexpr int64_t kNormBlock = 1024;  // elements

// The sum of the values' squares, in double. Blocks of kNormBlock elements are summed each on its
// own, element i of a block into partial sum i % 16 of 16, which are then added pairwise; the sums
// of the blocks are added in order to `sum`: that of the blocks before, where an array is gone
// through in parts of whole blocks. Wants the default floating-point mode. Thread-safe.
double SumOfSquares(ConstBuffer values, int64_t elements, double sum = 0);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_SIMD_NORMS_H_
