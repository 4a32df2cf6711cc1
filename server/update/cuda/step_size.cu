#include "server/update/cuda/step_size.h"

#include <cuda_runtime.h>

namespace optshard {
namespace kernels {

__global__ void __launch_bounds__(kKernelThreads) SetStepSizes(const StepSizeArguments arguments) {
  const int32_t index = static_cast<int32_t>(blockIdx.x) * kKernelThreads + threadIdx.x;
  if (index < arguments.count) SetStepSize(arguments, index);
}

}  // namespace kernels

int LaunchStepSizes(const StepSizeArguments& arguments, void* stream) {
  if (arguments.count == 0) return 0;
  const int blocks = (arguments.count + kKernelThreads - 1) / kKernelThreads;
  kernels::SetStepSizes<<<blocks, kKernelThreads, 0, static_cast<cudaStream_t>(stream)>>>(arguments);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace optshard
