// The kernels around the bodies of element_wise_body.h, for nvcc.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_GRID_ON_DEVICE_INL_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_GRID_ON_DEVICE_INL_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "server/update/cuda/element_wise_body.h"
#include "server/update/cuda/formula_kernels.h"

namespace optshard {
namespace kernels {

__device__ inline GridPlace PlaceHere() {
  return {static_cast<int>(threadIdx.x), static_cast<int64_t>(blockIdx.x),
          static_cast<int64_t>(gridDim.x)};
}

template <class Formula, typename T, SlotSet kSlots>
__global__ void __launch_bounds__(kKernelThreads) PlainKernel(const KernelArguments<T> arguments) {
  PlainBody<Formula, T, kSlots>::Run(arguments, PlaceHere());
}

// Without a number of blocks the compiler gives some of these fewer registers than they need, and
// spills. With two blocks a thread may have 128.
template <class Formula, SlotSet kSlots, bool kCoded>
__global__ void __launch_bounds__(kKernelThreads, 2)
    MixedKernel(const KernelArguments<float> arguments) {
  using Body = MixedBody<Formula, kSlots, kCoded>;
  __shared__ typename Body::Shared shared;
  const GridPlace grid = PlaceHere();
  typename Body::Carried carried;
  Body::Begin(arguments, grid, shared);
  if constexpr (kCoded) __syncthreads();
  const int64_t units = Body::UnitsOf(arguments, grid);
  for (int64_t unit = 0; unit < units; ++unit) {
    Body::Update(arguments, grid, unit, shared, carried);
    if constexpr (kCoded) {
      __syncthreads();
      Body::Encode(grid, unit, shared, carried);
    }
  }
}

template <typename T>
int LaunchKernel(void (*kernel)(KernelArguments<T>), const KernelArguments<T>& arguments,
                 const KernelGrid& grid) {
  kernel<<<grid.blocks, kKernelThreads, 0, static_cast<cudaStream_t>(grid.stream)>>>(arguments);
  return static_cast<int>(cudaGetLastError());
}

template <class Kernel>
int BlocksPerMultiprocessorOf(Kernel* kernel) {
  int blocks = 0;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kKernelThreads, 0) !=
      cudaSuccess) {
    return 0;
  }
  return blocks;
}

template <class Formula, typename T, SlotSet kSlots>
struct PlainGrid {
  int Launch(const KernelArguments<T>& arguments, const KernelGrid& grid) const {
    return LaunchKernel(&PlainKernel<Formula, T, kSlots>, arguments, grid);
  }
  int BlocksPerMultiprocessor() const {
    return BlocksPerMultiprocessorOf(&PlainKernel<Formula, T, kSlots>);
  }
};

template <class Formula, SlotSet kSlots, bool kCoded>
struct MixedGrid {
  int Launch(const KernelArguments<float>& arguments, const KernelGrid& grid) const {
    return LaunchKernel(&MixedKernel<Formula, kSlots, kCoded>, arguments, grid);
  }
  int BlocksPerMultiprocessor() const {
    return BlocksPerMultiprocessorOf(&MixedKernel<Formula, kSlots, kCoded>);
  }
};

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_GRID_ON_DEVICE_INL_H_
