// Memory of a device, and memory of the host that a device reads and writes on its own.
#ifndef OPTSHARD_COMMON_CUDA_CUDA_MEMORY_H_
#define OPTSHARD_COMMON_CUDA_CUDA_MEMORY_H_

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"

namespace optshard {

// Owns an allocation. Thread-compatible. Freeing waits for what the device still does with it.
class CudaMemory {
 public:
  // On the calling thread's current device, 256-byte aligned, with any content. RESOURCE_EXHAUSTED
  // with need and free.
  static absl::StatusOr<CudaMemory> OnDevice(size_t bytes);
  // Page-locked, so that copies run beside the host.
  static absl::StatusOr<CudaMemory> OnHost(size_t bytes);

  CudaMemory() = default;
  ~CudaMemory();
  CudaMemory(CudaMemory&& other) noexcept { *this = std::move(other); }
  CudaMemory& operator=(CudaMemory&& other) noexcept;

  void* data() const { return data_; }  // null: none
  size_t bytes() const { return bytes_; }

 private:
  CudaMemory(void* data, size_t bytes, bool on_host)
      : data_(data), bytes_(bytes), on_host_(on_host) {}

  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool on_host_ = false;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CUDA_CUDA_MEMORY_H_
