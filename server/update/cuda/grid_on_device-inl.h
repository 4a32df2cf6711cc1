// The kernels around the bodies of element_wise_body.h, for nvcc.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_GRID_ON_DEVICE_INL_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_GRID_ON_DEVICE_INL_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "server/update/cuda/element_wise_body.h"
#include "server/update/cuda/formula_kernels.h"

namespace optshard {
namespace kernels {

// Without a number of blocks the compiler gives some kernels fewer registers than they need, and
// spills. With two blocks a thread may have 128.
constexpr int kLeastBlocks = 2;

template <class Formula, typename T, SlotSet kSlots>
__global__ void __launch_bounds__(kKernelThreads, kLeastBlocks)
    PlainKernel(const KernelArguments<T> arguments) {
  PlainBody<Formula, T, kSlots>::Run(
      arguments, {static_cast<int>(threadIdx.x), static_cast<int64_t>(blockIdx.x),
                  static_cast<int64_t>(gridDim.x)});
}

// The largest of what the threads give of which so many share a block of codes: all of a warp, or
// eight.
__device__ inline uint32_t LargestOfBlock(uint32_t largest, int threads) {
  constexpr unsigned kWholeWarp = 0xffffffff;
  if (threads == 32) return __reduce_max_sync(kWholeWarp, largest);
  OPTSHARD_UNROLL
  for (int other = 1; other < 8; other *= 2) {
    largest = max(largest, __shfl_xor_sync(kWholeWarp, largest, other));
  }
  return largest;
}

template <class Body>
__device__ inline void EncodeSlot(const KernelArray& array, const typename Body::Place& place,
                                  const CodeTable* tables, const typename Body::Carried& carried,
                                  int s) {
  const int together = Body::ThreadsOfBlock(array.kind);
  uint32_t largest[2] = {Body::LargestOf(place, carried, s, 0),
                         Body::LargestOf(place, carried, s, 1)};
  if (IsDynamic(array.kind)) {
    largest[0] = LargestOfBlock(max(largest[0], largest[1]), together);
    largest[1] = largest[0];
  } else {
    largest[0] = LargestOfBlock(largest[0], together);
    largest[1] = LargestOfBlock(largest[1], together);
  }
  Body::Encode(array, place, tables, carried, s, largest);
}

template <class Formula, SlotSet kSlots, KernelPass kPass>
__global__ void __launch_bounds__(kKernelThreads, kLeastBlocks)
    MixedKernel(const KernelArguments<float> arguments) {
  using Body = MixedBody<Formula, kSlots, kPass>;
  __shared__ CodeTable tables[HasCodes(kPass) ? kCodeTables : 1];
  if (IsSkipped(arguments)) return;
  if constexpr (HasCodes(kPass)) {
    Body::Begin(arguments.tables, threadIdx.x, tables);
    __syncthreads();
  }
  for (int64_t chunk = blockIdx.x; chunk < arguments.chunks; chunk += gridDim.x) {
    const ChunkPlace at = FindChunk(arguments, chunk, ChunkElements<float>(kPass));
    const KernelSpan& span = *at.span;
    const Constants<Scalar> constants(CoefficientsOf(arguments, span));
    for (int unit = 0; unit < kUnitsPerChunk; ++unit) {
      const auto place = PlaceOf<typename Body::Place>(span, at.first, unit, threadIdx.x);
      typename Body::Carried carried;
      Body::Update(constants, span, place, tables, carried);
      if constexpr (HasCodes(kPass)) {
        OPTSHARD_UNROLL
        for (int s = 0; s < Body::SlotsOf::kCount; ++s) {
          const KernelArray& array = span.slots[s];
          if (Body::IsCodedSlot(array)) EncodeSlot<Body>(array, place, tables, carried, s);
        }
      }
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

template <class Formula, SlotSet kSlots, KernelPass kPass>
struct MixedGrid {
  int Launch(const KernelArguments<float>& arguments, const KernelGrid& grid) const {
    return LaunchKernel(&MixedKernel<Formula, kSlots, kPass>, arguments, grid);
  }
  int BlocksPerMultiprocessor() const {
    return BlocksPerMultiprocessorOf(&MixedKernel<Formula, kSlots, kPass>);
  }
};

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_GRID_ON_DEVICE_INL_H_
