#include "common/cuda/cuda_event.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/cuda/cuda_status.h"

namespace optshard {

absl::StatusOr<CudaEvent> CudaEvent::Create() {
  cudaEvent_t event = nullptr;
  const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error != cudaSuccess) return CudaStatus(error, "making an event");
  return CudaEvent(event);
}

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
}

CudaEvent& CudaEvent::operator=(CudaEvent&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}

absl::Status CudaEvent::Record(cudaStream_t stream) {
  return CudaStatus(cudaEventRecord(event_, stream), "recording an event");
}

absl::StatusOr<bool> CudaEvent::IsReached() const {
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  if (error != cudaSuccess) return CudaStatus(error, "waiting for a device");
  return true;
}

absl::Status CudaEvent::Wait(absl::Time deadline) const {
  // A device's work takes from microseconds to seconds: the pauses follow it.
  absl::Duration pause = absl::Microseconds(5);
  for (;;) {
    const absl::StatusOr<bool> reached = IsReached();
    if (!reached.ok()) return reached.status();
    if (*reached) return absl::OkStatus();
    if (Clock::Monotonic().Now() >= deadline) {
      return absl::DeadlineExceededError("a device has not come to the end of its work in time");
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, absl::Milliseconds(1));
  }
}

absl::Status CudaEvent::OrderOn(cudaStream_t stream) const {
  return CudaStatus(cudaStreamWaitEvent(stream, event_, 0), "ordering streams");
}

}  // namespace optshard
