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

// Matrices that lie one behind the other, row by row.
struct MatrixExtent {
  int64_t rows = 0;  // of all matrices
  int64_t columns = 0;
  int64_t matrix_rows = 0;  // of each; the last one may have fewer
};

// Sets row_sums[r] to the SumOfSquares of row r, and adds to the column_sums of each matrix, which
// lie one behind the other, too, the squares of its rows in order. Wants the default floating-point
// mode. Thread-safe.
void SumSquaresByRowAndColumn(const float* values, const MatrixExtent& extent, double* row_sums,
                              double* column_sums);
void SumSquaresByRowAndColumn(const double* values, const MatrixExtent& extent, double* row_sums,
                              double* column_sums);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_SIMD_NORMS_H_
