// What the kernels of sums of squares read and write: plain data, laid out by the host.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_SQUARES_ARGUMENTS_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_SQUARES_ARGUMENTS_H_

#include <cstdint>

#include "server/update/cuda/kernel_arguments.h"

namespace optshard {

// An array whose elements' squares are added, with kNormBlock elements (common/simd/norms.h) in
// each block but the last of a period.
struct SquaresSpan {
  KernelArray values;                   // not in codes
  const int8_t* corrections = nullptr;  // of 16-bit values; null: they have none
  int64_t elements = 0;
  int64_t period = 0;         // blocks begin anew after so many elements
  int64_t blocks_before = 0;  // of the spans before this one
  bool is_aligned = false;  // whether four elements may be loaded at once, wherever a fourth begins
};

struct SumOfSquaresOnDevice {
  double squares = 0;
  int64_t not_finite = 0;  // how many elements are infinite or NaN
};

struct SquaresArguments {
  const SquaresSpan* spans = nullptr;
  int32_t span_count = 0;
  int64_t blocks = 0;                         // of all spans
  SumOfSquaresOnDevice* of_blocks = nullptr;  // one for each
  SumOfSquaresOnDevice* of_spans = nullptr;   // the result
};

// A group of so many threads adds a block: sum i % 16 of 16 belongs to thread i % 16 / 4 of it.
constexpr int kThreadsOfSquares = 4;
constexpr int kSumsOfThread = 4;
constexpr int kSquaresBlocksAtOnce = kKernelThreads / kThreadsOfSquares;
// The sums of so many blocks are added in order at a time.
constexpr int kSquaresTile = 1024;

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_SQUARES_ARGUMENTS_H_
