#include "common/cuda/cuda_memory.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_format.h"
#include "common/cuda/cuda_status.h"

namespace optshard {

absl::StatusOr<CudaMemory> CudaMemory::OnDevice(size_t bytes) {
  void* data = nullptr;
  if (const cudaError_t error = cudaMalloc(&data, bytes); error != cudaSuccess) {
    return CudaAllocationStatus(error, bytes, "allocating memory of the device");
  }
  return CudaMemory(data, bytes, /*on_host=*/false);
}

absl::StatusOr<CudaMemory> CudaMemory::OnHost(size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d bytes of the host's memory cannot be page-locked: there is too little, "
                        "or a limit (ulimit -l, the container's)",
                        bytes));
  }
  if (error != cudaSuccess) return CudaStatus(error, "allocating page-locked memory of the host");
  return CudaMemory(data, bytes, /*on_host=*/true);
}

CudaMemory::~CudaMemory() {
  if (data_ == nullptr) return;
  // A process that ends may have lost its device already.
  static_cast<void>(on_host_ ? cudaFreeHost(data_) : cudaFree(data_));
}

CudaMemory& CudaMemory::operator=(CudaMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(on_host_, other.on_host_);
  return *this;
}

}  // namespace optshard
