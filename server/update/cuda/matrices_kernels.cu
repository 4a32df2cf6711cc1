#include "server/update/cuda/matrices_kernels.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "server/update/cuda/matrices_body.h"

namespace optshard {
namespace kernels {

template <typename T>
__global__ void __launch_bounds__(kKernelThreads) SetMeans(const MatricesArguments arguments) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kKernelThreads;
  for (int64_t line = static_cast<int64_t>(blockIdx.x) * kKernelThreads + threadIdx.x;
       line < arguments.lines; line += step) {
    SetMean<T>(arguments, line);
  }
}

template <typename T>
__global__ void __launch_bounds__(kKernelThreads) DivideByMeans(const MatricesArguments arguments) {
  __shared__ T near[kMatricesTile];
  __shared__ double mean;
  for (int64_t division = blockIdx.x; division < arguments.divisions; division += gridDim.x) {
    const RowsOfMatrix<T> of = FindRows<T>(arguments, division, threadIdx.x);
    if (of.are_few) {
      DivideFew(of);
      continue;
    }
    double sum = 0;
    for (int64_t tile = 0; tile * kMatricesTile < of.rows; ++tile) {
      LoadAverages(of, tile, threadIdx.x, near);
      __syncthreads();
      if (threadIdx.x == 0) AddAverages(of, tile, near, sum);
      __syncthreads();
    }
    if (threadIdx.x == 0) mean = MeanOfAverages(of, sum);
    __syncthreads();
    DivideAverages(of, mean, threadIdx.x);
    __syncthreads();
  }
}

template <typename T>
__global__ void __launch_bounds__(kKernelThreads) Estimates(const MatricesArguments arguments) {
  for (int64_t tile = blockIdx.x; tile < arguments.tiles; tile += gridDim.x) {
    SetEstimates<T>(arguments, tile, threadIdx.x);
  }
}

template <typename T>
cudaError_t Launch(MatricesPhase phase, const MatricesArguments& arguments,
                   const KernelGrid& grid) {
  const auto stream = static_cast<cudaStream_t>(grid.stream);
  const auto at_most = [&grid](int64_t blocks) {
    return static_cast<unsigned>(std::min<int64_t>(blocks, grid.blocks));
  };
  switch (phase) {
    case MatricesPhase::kMeans: {
      const int64_t blocks = (arguments.lines + kKernelThreads - 1) / kKernelThreads;
      SetMeans<T><<<at_most(blocks), kKernelThreads, 0, stream>>>(arguments);
      break;
    }
    case MatricesPhase::kDivide:
      DivideByMeans<T><<<at_most(arguments.divisions), kKernelThreads, 0, stream>>>(arguments);
      break;
    case MatricesPhase::kEstimates:
      Estimates<T><<<at_most(arguments.tiles), kKernelThreads, 0, stream>>>(arguments);
      break;
  }
  return cudaGetLastError();
}

}  // namespace kernels

int LaunchMatrices(MatricesPhase phase, bool is_double, const MatricesArguments& arguments,
                   const KernelGrid& grid) {
  if (arguments.lines == 0) return 0;
  return static_cast<int>(is_double ? kernels::Launch<double>(phase, arguments, grid)
                                    : kernels::Launch<float>(phase, arguments, grid));
}

}  // namespace optshard
