// Sums of squares on a GPU.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_SQUARES_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_SQUARES_H_

#include "server/update/cuda/formula_kernels.h"
#include "server/update/cuda/squares_arguments.h"

namespace optshard {

// Which sums are wanted.
enum class SquaresOf { kBlocks, kBlocksAndSpans };

// Enqueues the kernels on the grid's stream: SumOfSquares (common/simd/norms.h) of each block, and
// of each span, with its bits. `grid.blocks`: at most so many of the first one. What `arguments`
// points to lies in the device's memory until they have ended. Returns a cudaError_t: 0, or why one
// could not be launched.
int LaunchSquares(const SquaresArguments& arguments, SquaresOf wanted, const KernelGrid& grid);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_SQUARES_H_
