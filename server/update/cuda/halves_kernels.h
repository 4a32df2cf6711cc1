// Between numbers and bfloat16 on a GPU.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_HALVES_KERNELS_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_HALVES_KERNELS_H_

#include "server/update/cuda/formula_kernels.h"
#include "server/update/cuda/halves_arguments.h"

namespace optshard {

// Enqueues the phase's kernel on the grid's stream; `is_double`: of numbers that are double, or
// float. `grid.blocks`: at most so many. What `arguments` points to lies in the device's memory
// until it has ended. Returns a cudaError_t: 0, or why it could not be launched.
int LaunchHalves(HalvesPhase phase, bool is_double, const HalvesArguments& arguments,
                 const KernelGrid& grid);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_HALVES_KERNELS_H_
