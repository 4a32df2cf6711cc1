#include "server/update/cuda/halves_kernels.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "server/update/cuda/halves_body.h"

namespace optshard {
namespace kernels {

template <typename T>
__global__ void __launch_bounds__(kKernelThreads) ScaleToHalves(const HalvesArguments arguments) {
  __shared__ double factor;
  for (int64_t tile = blockIdx.x; tile < arguments.tiles; tile += gridDim.x) {
    const TileOfHalves at = FindTile(arguments, tile);
    __syncthreads();  // all have read the factor of the tile before
    if (threadIdx.x == 0) factor = FactorOf(at);
    __syncthreads();
    SetHalves<T>(at, factor, threadIdx.x);
  }
}

template <typename T>
__global__ void __launch_bounds__(kKernelThreads) WidenHalves(const HalvesArguments arguments) {
  for (int64_t tile = blockIdx.x; tile < arguments.tiles; tile += gridDim.x) {
    SetNumbers<T>(FindTile(arguments, tile), threadIdx.x);
  }
}

template <typename T>
cudaError_t Launch(HalvesPhase phase, const HalvesArguments& arguments, const KernelGrid& grid) {
  const auto stream = static_cast<cudaStream_t>(grid.stream);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(arguments.tiles, grid.blocks));
  switch (phase) {
    case HalvesPhase::kScale:
      ScaleToHalves<T><<<blocks, kKernelThreads, 0, stream>>>(arguments);
      break;
    case HalvesPhase::kWiden:
      WidenHalves<T><<<blocks, kKernelThreads, 0, stream>>>(arguments);
      break;
  }
  return cudaGetLastError();
}

}  // namespace kernels

int LaunchHalves(HalvesPhase phase, bool is_double, const HalvesArguments& arguments,
                 const KernelGrid& grid) {
  if (arguments.tiles == 0) return 0;
  return static_cast<int>(is_double ? kernels::Launch<double>(phase, arguments, grid)
                                    : kernels::Launch<float>(phase, arguments, grid));
}

}  // namespace optshard
