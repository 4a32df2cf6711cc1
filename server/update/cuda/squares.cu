#include "server/update/cuda/squares.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "server/update/cuda/squares_body.h"

namespace optshard {
namespace kernels {

// As in grid_on_device-inl.h.
constexpr int kLeastBlocks = 2;

// Of the thread that is so many after this one in its group.
__device__ inline PartialSquares PartAfter(const PartialSquares& partial, int distance) {
  constexpr unsigned kWholeWarp = 0xffffffff;
  PartialSquares other;
  OPTSHARD_UNROLL
  for (int k = 0; k < kSumsOfThread; ++k) {
    other.sums[k] = __shfl_down_sync(kWholeWarp, partial.sums[k], distance, kThreadsOfSquares);
  }
  other.not_finite =
      __shfl_down_sync(kWholeWarp, partial.not_finite, distance, kThreadsOfSquares);
  return other;
}

__global__ void __launch_bounds__(kKernelThreads, kLeastBlocks) SquaresOfBlocks(const SquaresArguments arguments) {
  const int thread = threadIdx.x % kThreadsOfSquares;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kSquaresBlocksAtOnce;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kSquaresBlocksAtOnce;
       first < arguments.blocks; first += step) {
    const int64_t block = first + threadIdx.x / kThreadsOfSquares;
    PartialSquares partial = PartOfBlock(arguments, block, thread);
    AddPart(PartAfter(partial, 2), partial);
    AddPart(PartAfter(partial, 1), partial);
    if (thread == 0 && block < arguments.blocks) {
      arguments.of_blocks[block] = SumOfBlock(partial);
    }
  }
}

__global__ void __launch_bounds__(kKernelThreads, kLeastBlocks) SquaresOfSpans(const SquaresArguments arguments) {
  __shared__ SumOfSquaresOnDevice tile_sums[kSquaresTile];
  for (int32_t span = blockIdx.x; span < arguments.span_count; span += gridDim.x) {
    const int64_t blocks = BlocksOfSpan(arguments.spans[span]);
    SumOfSquaresOnDevice sum;
    for (int64_t tile = 0; tile * kSquaresTile < blocks; ++tile) {
      LoadTile(arguments, span, tile, threadIdx.x, tile_sums);
      __syncthreads();
      if (threadIdx.x == 0) AddTile(arguments, span, tile, tile_sums, sum);
      __syncthreads();
    }
    if (threadIdx.x == 0) arguments.of_spans[span] = sum;
  }
}

}  // namespace kernels

int LaunchSquares(const SquaresArguments& arguments, SquaresOf wanted, const KernelGrid& grid) {
  constexpr int64_t kMostSpansAtOnce = 1024;
  const auto stream = static_cast<cudaStream_t>(grid.stream);
  if (arguments.blocks > 0) {
    const int64_t turns = (arguments.blocks + kSquaresBlocksAtOnce - 1) / kSquaresBlocksAtOnce;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(turns, grid.blocks));
    kernels::SquaresOfBlocks<<<blocks, kKernelThreads, 0, stream>>>(arguments);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return static_cast<int>(error);
  }
  if (arguments.span_count == 0 || wanted == SquaresOf::kBlocks) return 0;
  const auto spans =
      static_cast<unsigned>(std::min<int64_t>(arguments.span_count, kMostSpansAtOnce));
  kernels::SquaresOfSpans<<<spans, kKernelThreads, 0, stream>>>(arguments);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace optshard
