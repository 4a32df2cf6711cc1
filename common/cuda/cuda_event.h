// A point in the work of a device's stream.
#ifndef OPTSHARD_COMMON_CUDA_CUDA_EVENT_H_
#define OPTSHARD_COMMON_CUDA_CUDA_EVENT_H_

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace optshard {

// Thread-compatible.
class CudaEvent {
 public:
  // Of the calling thread's current device.
  static absl::StatusOr<CudaEvent> Create();

  CudaEvent() = default;
  ~CudaEvent();
  CudaEvent(CudaEvent&& other) noexcept { *this = std::move(other); }
  CudaEvent& operator=(CudaEvent&& other) noexcept;

  // After all that has been put on the stream.
  absl::Status Record(cudaStream_t stream);
  // Whether the stream has come to it; true before the first Record. DATA_LOSS where the device
  // has failed.
  absl::StatusOr<bool> IsReached() const;
  // Blocks the host. DEADLINE_EXCEEDED; the deadline is in the time of Clock::Monotonic().
  absl::Status Wait(absl::Time deadline) const;
  // Later work on the stream begins after it.
  absl::Status OrderOn(cudaStream_t stream) const;

 private:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}

  cudaEvent_t event_ = nullptr;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CUDA_CUDA_EVENT_H_
