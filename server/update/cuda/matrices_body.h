// What the threads of the kernels of averages over rows and columns do, in phases between which
// they wait for each other: with the bits of what the CPU does (server/update/rules/adafactor.cc).
// A phase is a function of the arguments, block and thread; so a host can run all of it (tests).
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_MATRICES_BODY_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_MATRICES_BODY_H_

#include <cstdint>

#include "common/host_device.h"
#include "server/update/cuda/matrices_arguments.h"
#include "server/update/cuda/span_search.h"
#include "server/update/cuda/squares_body.h"

namespace optshard {
namespace kernels {

// --- MatricesPhase::kMeans: a thread for each line.

template <typename T>
OPTSHARD_HOST_DEVICE inline void SetMeanOfRow(const MatricesSpan& span, int64_t row) {
  const int64_t blocks = BlocksOf(span.columns);
  const SumOfSquaresOnDevice* const of_blocks = span.of_row_blocks + row * blocks;
  double sum = 0;
  for (int64_t block = 0; block < blocks; ++block) sum += of_blocks[block].squares;
  static_cast<T*>(span.row_means)[row] = static_cast<T>(sum / static_cast<double>(span.columns));
}

// Threads beside each other have columns beside each other.
template <typename T>
OPTSHARD_HOST_DEVICE inline void SetMeanOfColumn(const MatricesSpan& span, int64_t index) {
  const int64_t matrix = index / span.columns;
  const T* element = static_cast<const T*>(span.elements) + matrix * span.rows * span.columns +
                     index % span.columns;
  double sum = 0;
  for (int64_t row = 0; row < span.rows; ++row, element += span.columns) {
    const auto value = static_cast<double>(*element);
    sum += value * value;
  }
  static_cast<T*>(span.column_means)[index] = static_cast<T>(sum / static_cast<double>(span.rows));
}

template <typename T>
OPTSHARD_HOST_DEVICE inline void SetMean(const MatricesArguments& arguments, int64_t line) {
  const MatricesSpan& span = FindSpan(arguments, &MatricesSpan::lines_before, line);
  const int64_t index = line - span.lines_before;
  const int64_t rows = span.count * span.rows;
  if (index < rows) {
    SetMeanOfRow<T>(span, index);
  } else {
    SetMeanOfColumn<T>(span, index - rows);
  }
}

// --- MatricesPhase::kDivide: a block for each matrix, or a thread where it has few rows.

OPTSHARD_HOST_DEVICE inline bool HasFewRows(const MatricesSpan& span) {
  return span.rows <= kFewRows;
}

OPTSHARD_HOST_DEVICE inline int64_t DivisionsOf(const MatricesSpan& span) {
  return HasFewRows(span) ? (span.count + kKernelThreads - 1) / kKernelThreads : span.count;
}

template <typename T>
struct RowsOfMatrix {
  T* averages = nullptr;
  int64_t rows = 0;  // 0: there is no such matrix
  double least_mean = 0;
  bool are_few = false;  // of one thread
};

// Of a thread's matrix, or of a block's.
template <typename T>
OPTSHARD_HOST_DEVICE inline RowsOfMatrix<T> FindRows(const MatricesArguments& arguments,
                                                     int64_t division, int thread) {
  const MatricesSpan& span = FindSpan(arguments, &MatricesSpan::divisions_before, division);
  RowsOfMatrix<T> found;
  found.are_few = HasFewRows(span);
  int64_t matrix = division - span.divisions_before;
  if (found.are_few) matrix = matrix * kKernelThreads + thread;
  if (matrix >= span.count) return found;
  found.averages = static_cast<T*>(span.row_averages) + matrix * span.rows;
  found.rows = span.rows;
  found.least_mean = span.least_mean;
  return found;
}

// The first phase of a tile of rows, of every thread: it is copied to where it is near.
template <typename T>
OPTSHARD_HOST_DEVICE inline void LoadAverages(const RowsOfMatrix<T>& of, int64_t tile, int thread,
                                              T* to) {
  const int64_t begin = tile * kMatricesTile;
  for (int64_t k = thread; k < kMatricesTile && begin + k < of.rows; k += kKernelThreads) {
    to[k] = of.averages[begin + k];
  }
}

// The second one, of one thread.
template <typename T>
OPTSHARD_HOST_DEVICE inline void AddAverages(const RowsOfMatrix<T>& of, int64_t tile, const T* from,
                                             double& sum) {
  const int64_t left = of.rows - tile * kMatricesTile;
  const int count = static_cast<int>(left < kMatricesTile ? left : kMatricesTile);
  for (int k = 0; k < count; ++k) sum += static_cast<double>(from[k]);
}

// After the last tile, of that thread.
template <typename T>
OPTSHARD_HOST_DEVICE inline double MeanOfAverages(const RowsOfMatrix<T>& of, double sum) {
  const double mean = sum / static_cast<double>(of.rows);
  return mean < of.least_mean ? of.least_mean : mean;
}

// The last phase, of every thread.
template <typename T>
OPTSHARD_HOST_DEVICE inline void DivideAverages(const RowsOfMatrix<T>& of, double mean, int thread,
                                                int threads = kKernelThreads) {
  for (int64_t row = thread; row < of.rows; row += threads) {
    of.averages[row] = static_cast<T>(static_cast<double>(of.averages[row]) / mean);
  }
}

// All phases, of few rows.
template <typename T>
OPTSHARD_HOST_DEVICE inline void DivideFew(const RowsOfMatrix<T>& of) {
  if (of.rows == 0) return;
  double sum = 0;
  for (int64_t row = 0; row < of.rows; ++row) sum += static_cast<double>(of.averages[row]);
  DivideAverages(of, MeanOfAverages(of, sum), 0, 1);
}

// --- MatricesPhase::kEstimates: a block for each tile of elements.

template <typename T>
OPTSHARD_HOST_DEVICE inline void SetEstimates(const MatricesArguments& arguments, int64_t tile,
                                              int thread) {
  const MatricesSpan& span = FindSpan(arguments, &MatricesSpan::tiles_before, tile);
  const int64_t first = (tile - span.tiles_before) * kMatricesTile + thread * kElementsOfThread;
  const int64_t rows = span.count * span.rows;
  int64_t row = first / span.columns;
  int64_t column = first % span.columns;
  const T* const of_rows = static_cast<const T*>(span.row_averages);
  const T* const of_columns = static_cast<const T*>(span.column_averages);
  T* const estimates = static_cast<T*>(span.estimates);
  for (int k = 0; k < kElementsOfThread && row < rows; ++k) {
    estimates[first + k] = of_rows[row] * of_columns[row / span.rows * span.columns + column];
    if (++column == span.columns) {
      column = 0;
      ++row;
    }
  }
}

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_MATRICES_BODY_H_
