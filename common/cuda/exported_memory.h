// Memory of a device that several processes of a host use at the same address of the device.
#ifndef OPTSHARD_COMMON_CUDA_EXPORTED_MEMORY_H_
#define OPTSHARD_COMMON_CUDA_EXPORTED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "common/link/unique_fd.h"

namespace optshard {

// A mapping of an allocation that CUDA's virtual memory management made. The allocation lives until
// the last process that has it mapped, or holds a descriptor of it, has let go or ended, however
// that came: so it outlives the process that made it. Thread-compatible.
class ExportedMemory {
 public:
  // On the device of that index, at least `bytes`, in whole pages of 2 MiB, with any content.
  // RESOURCE_EXHAUSTED with need and free, FAILED_PRECONDITION where the device cannot export,
  // INVALID_ARGUMENT for no bytes or more than there are addresses.
  static absl::StatusOr<ExportedMemory> Create(int device, size_t bytes);
  // Maps what Export gave, in this process or another one; `device` is the same GPU, whose index
  // may differ between processes. INVALID_ARGUMENT also for a descriptor of something else, and
  // where the memory that it is of has another size.
  static absl::StatusOr<ExportedMemory> Import(int device, int descriptor, size_t bytes);

  ExportedMemory() = default;
  // Waits until the device has ended all its work, and unmaps. The driver has no such wait with a
  // deadline: what is enqueued there has to end by itself, as data planes' operations do.
  ~ExportedMemory();
  ExportedMemory(ExportedMemory&& other) noexcept { *this = std::move(other); }
  ExportedMemory& operator=(ExportedMemory&& other) noexcept;

  // A descriptor to be sent over a local socket.
  absl::StatusOr<UniqueFd> Export() const;

  void* data() const { return reinterpret_cast<void*>(address_); }  // null: none
  size_t bytes() const { return bytes_; }                           // as many as were asked for

 private:
  ExportedMemory(int device, size_t bytes, size_t mapped)
      : device_(device), bytes_(bytes), mapped_(mapped) {}

  static absl::StatusOr<ExportedMemory> Unmapped(int device, size_t bytes);
  absl::Status Map(uint64_t handle);

  int device_ = 0;
  uint64_t handle_ = 0;   // a CUmemGenericAllocationHandle
  uint64_t address_ = 0;  // a CUdeviceptr
  size_t bytes_ = 0;
  size_t mapped_ = 0;  // in whole pages
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CUDA_EXPORTED_MEMORY_H_
