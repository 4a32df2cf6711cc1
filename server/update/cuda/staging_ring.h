// Tables on their way from the host to a device.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_STAGING_RING_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_STAGING_RING_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cuda/cuda_event.h"
#include "common/cuda/cuda_memory.h"

namespace optshard {

// Places that are used in turn: as many as there are launches under way, once it has seen that
// many. Thread-compatible; calls with its device current.
class StagingRing {
 public:
  // A table in the host's memory and in the device's. Who has it records `is_read` on the stream,
  // behind the last kernel that reads it.
  struct Place {
    CudaMemory host;
    CudaMemory device;
    CudaEvent is_read;
  };

  // Of the calling thread's current device.
  static absl::StatusOr<StagingRing> Create();

  static constexpr size_t kMostPlaces = 1024;

  // Where `fill` is told that a table will lie: in the host's memory, which it writes to, and in
  // the device's.
  using Fill = absl::FunctionRef<void(void* host, void* device)>;

  // Enqueues the copy of a table of so many bytes. Where all places are in use it makes one more,
  // up to kMostPlaces, and then waits for the launches that had the oldest one, by the deadline.
  // What their failure was, what CudaMemory says, or the failure of the copy.
  absl::StatusOr<Place*> Copy(size_t bytes, Fill fill, cudaStream_t stream, absl::Time deadline);

 private:
  StagingRing() = default;
  static absl::StatusOr<std::unique_ptr<Place>> MakePlace();
  absl::StatusOr<Place*> Next(size_t bytes, absl::Time deadline);

  std::vector<std::unique_ptr<Place>> places_;
  size_t next_ = 0;  // the one that was used first
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_STAGING_RING_H_
