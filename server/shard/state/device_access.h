// Reads of the state on a device by the host, from any thread, in order with the steps that update
// it there.
#ifndef OPTSHARD_SERVER_SHARD_STATE_DEVICE_ACCESS_H_
#define OPTSHARD_SERVER_SHARD_STATE_DEVICE_ACCESS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/device_api.h"

namespace optshard {

// A step never waits for it on the host. On the device it waits for the copy that is under way, of
// kWindowBytes at most. Thread-safe, but where it says otherwise. Errors are the device's, but
// where it says otherwise.
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
  // Those that were enqueued so far have ended as they should.
  void UpdatesHaveEnded();
  // Others end on the device also where they cannot be made, because a rank is lost: then `works`
  // has an error, before they end. Any thread calls it. Null: they do not.
  void ExpectUpdatesWhile(std::function<absl::Status()> works);

  // Which updates have been enqueued; none while others just are. Values that were read with the
  // same version before and after are of one step.
  absl::optional<uint64_t> version() const;

  // Copies the ranges, as they are behind the updates of `version`, and calls `take` with the
  // window. False where that is not the version any more. DEADLINE_EXCEEDED where the updates take
  // so long, or others read; the error of what ExpectUpdatesWhile was given.
  absl::StatusOr<bool> TryRead(uint64_t version, absl::Span<const Range> ranges,
                               absl::Time deadline, absl::FunctionRef<void(char* window)> take);

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

  absl::Status EnqueueCopies(absl::Span<const Range> ranges) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of copies that have been enqueued.
  absl::Status AwaitCopies(uint64_t version, absl::Time deadline);

  const std::shared_ptr<DeviceApi> device_;
  // Freed in the reverse order: the stream's work uses the window.
  const std::shared_ptr<void> window_;
  const std::shared_ptr<void> stream_;
  mutable absl::Mutex mutex_;  // held while work is enqueued
  const std::unique_ptr<DeviceEvent> updated_ ABSL_PT_GUARDED_BY(mutex_);
  // Recorded with the mutex, by whoever has the window, who looks at it without.
  const std::unique_ptr<DeviceEvent> copied_;
  bool window_is_free_ ABSL_GUARDED_BY(mutex_) = true;
  bool is_updating_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t ended_version_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<absl::Status()> works_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_DEVICE_ACCESS_H_
