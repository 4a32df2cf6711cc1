// Reads of the state on a device by the host, from any thread, in order with the steps that update
// it there.
#ifndef OPTSHARD_SERVER_SHARD_STATE_DEVICE_ACCESS_H_
#define OPTSHARD_SERVER_SHARD_STATE_DEVICE_ACCESS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/device_api.h"

namespace optshard {

// A step never waits for it on the host. On the device it waits for the copy that is under way, of
// kWindowBytes at most. Thread-safe, but where it says otherwise. Calls that wait do so for ten
// seconds at most (DEADLINE_EXCEEDED); other errors are the device's.
class DeviceAccess {
 public:
  // What is copied at once, through memory of the host.
  static constexpr size_t kWindowBytes = size_t{1} << 20;

  struct Range {
    void* on_device = nullptr;
    size_t in_window = 0;
    size_t bytes = 0;
  };

  static absl::StatusOr<std::unique_ptr<DeviceAccess>> Create(std::shared_ptr<DeviceApi> device);

  // By the step's thread, around what it enqueues on `stream` and updates the state.
  absl::Status BeginUpdates(void* stream);
  absl::Status EndUpdates(void* stream);

  // Which updates have been enqueued; none while others just are. Values that were read with the
  // same version before and after are of one step.
  absl::optional<uint64_t> version() const;

  // Copies the ranges, as they are behind the updates of `version`, and calls `take` with the
  // window. False where that is not the version any more.
  absl::StatusOr<bool> TryRead(uint64_t version, absl::Span<const Range> ranges,
                               absl::FunctionRef<void(char* window)> take);

 private:
  DeviceAccess(std::shared_ptr<DeviceApi> device, std::shared_ptr<void> stream,
               std::shared_ptr<void> window, std::unique_ptr<DeviceEvent> updated,
               std::unique_ptr<DeviceEvent> copied)
      : device_(std::move(device)),
        window_(std::move(window)),
        stream_(std::move(stream)),
        updated_(std::move(updated)),
        copied_(std::move(copied)) {}

  char* window() const { return static_cast<char*>(window_.get()); }

  const std::shared_ptr<DeviceApi> device_;
  absl::Mutex window_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // held while the window is in use
  // Freed in the reverse order: the stream's work uses the window.
  const std::shared_ptr<void> window_;
  const std::shared_ptr<void> stream_;
  mutable absl::Mutex mutex_;  // held while work is enqueued
  const std::unique_ptr<DeviceEvent> updated_ ABSL_PT_GUARDED_BY(mutex_);
  const std::unique_ptr<DeviceEvent> copied_;  // recorded with both mutexes, looked at with one
  bool is_updating_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_DEVICE_ACCESS_H_
