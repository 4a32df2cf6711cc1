// What the kernels of averages over rows and columns read and write: plain data, laid out by the
// host.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_MATRICES_ARGUMENTS_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_MATRICES_ARGUMENTS_H_

#include <cstdint>

#include "server/update/cuda/squares_arguments.h"

namespace optshard {

// A parameter's matrices (server/update/matrices.h), which lie one behind the other. All arrays are
// of what is computed in.
struct MatricesSpan {
  const void* elements = nullptr;
  const SumOfSquaresOnDevice* of_row_blocks = nullptr;  // of kNormBlock elements; rows begin anew
  void* row_means = nullptr;
  void* column_means = nullptr;
  void* row_averages = nullptr;
  void* column_averages = nullptr;
  void* estimates = nullptr;  // of the elements
  int64_t count = 0;          // of matrices
  int64_t rows = 0;           // of each
  int64_t columns = 0;
  double least_mean = 0;
  // Of the spans before this one.
  int64_t lines_before = 0;      // rows and columns
  int64_t divisions_before = 0;  // of averages: what a block does at a time
  int64_t tiles_before = 0;
};

struct MatricesArguments {
  const MatricesSpan* spans = nullptr;
  int32_t span_count = 0;
  int64_t lines = 0;  // of all spans
  int64_t divisions = 0;
  int64_t tiles = 0;
};

// What is done with them, each by a kernel of its own.
enum class MatricesPhase {
  kMeans,      // of the squares of each row and column
  kDivide,     // the averages of each matrix's rows by their mean
  kEstimates,  // of each element's variance: the averages of its row and its column, multiplied
};

// A block multiplies so many elements at a time, and adds the averages of so many rows.
constexpr int kElementsOfThread = 4;
// Each thread of a block divides the averages of a matrix of at most so many rows.
constexpr int64_t kFewRows = 32;
constexpr int64_t kMatricesTile = int64_t{kKernelThreads} * kElementsOfThread;

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_MATRICES_ARGUMENTS_H_
