#include "common/dataplane/nccl/in_order_average.h"

#include <algorithm>
#include <cstdint>

namespace optshard {
namespace {

constexpr int kThreads = 256;
// Several for each multiprocessor of the largest GPUs; each goes over its share of the elements.
constexpr int64_t kMaxBlocks = 2048;

template <class Type>
__global__ void __launch_bounds__(kThreads)
    InOrderAverage(const __grid_constant__ InOrderSum sum, int64_t elements, void* result,
                   bool aligned) {
  AverageInOrder<Type>(sum, elements, result, aligned,
                       static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x,
                       static_cast<int64_t>(gridDim.x) * kThreads);
}

bool IsAligned(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % 16 == 0; }

template <class Type>
cudaError_t Launch(const InOrderSum& sum, int64_t elements, void* result, cudaStream_t stream) {
  bool aligned = IsAligned(result);
  int contributions = 0;
  for (int group = 0; group < sum.groups; ++group) contributions += sum.group_sizes[group];
  for (int k = 0; k < contributions; ++k) aligned = aligned && IsAligned(sum.contributions[k]);
  const int64_t each = aligned ? 16 / static_cast<int64_t>(sizeof(typename Type::Stored)) : 1;
  const int64_t turns = (elements + each * kThreads - 1) / (each * kThreads);
  const auto blocks = static_cast<unsigned>(std::min(turns, kMaxBlocks));
  InOrderAverage<Type><<<blocks, kThreads, 0, stream>>>(sum, elements, result, aligned);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchInOrderAverage(DType dtype, const InOrderSum& sum, int64_t elements, void* result,
                                 cudaStream_t stream) {
  if (elements == 0) return cudaSuccess;
  switch (dtype) {
    case DType::kFloat32:
      return Launch<InOrderFloat32>(sum, elements, result, stream);
    case DType::kFloat64:
      return Launch<InOrderFloat64>(sum, elements, result, stream);
    case DType::kFloat16:
      return Launch<InOrderFloat16>(sum, elements, result, stream);
    case DType::kBFloat16:
      return Launch<InOrderBFloat16>(sum, elements, result, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace optshard
