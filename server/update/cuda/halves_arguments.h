// What the kernels between numbers and bfloat16 read and write: plain data, laid out by the host.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_HALVES_ARGUMENTS_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_HALVES_ARGUMENTS_H_

#include <cstdint>

#include "server/update/cuda/squares_arguments.h"

namespace optshard {

// An array in both forms. Both begin where four elements may be loaded or stored at once.
struct HalvesSpan {
  void* numbers = nullptr;  // float or double
  void* halves = nullptr;   // bfloat16
  int64_t elements = 0;
  const SumOfSquaresOnDevice* squares = nullptr;  // of the numbers
  double eps = 0;                                 // the least norm
  int64_t tiles_before = 0;                       // of the spans before this one
};

struct HalvesArguments {
  const HalvesSpan* spans = nullptr;
  int32_t span_count = 0;
  int64_t tiles = 0;  // of all spans
};

// What is done with them, each by a kernel of its own.
enum class HalvesPhase {
  kScale,  // the halves become the numbers over their norm (InverseNorm,
           // server/update/norm_ratio.h)
  kWiden,  // the numbers become the halves
};

// A thread has four elements of each tile.
constexpr int kHalvesOfThread = 4;
constexpr int64_t kHalvesTile = int64_t{kKernelThreads} * kHalvesOfThread;

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_HALVES_ARGUMENTS_H_
