// The state on a device as the host reads it, from any thread, and writes it, in order with the
// steps that update it there.
#ifndef OPTSHARD_SERVER_SHARD_STATE_DEVICE_ACCESS_H_
#define OPTSHARD_SERVER_SHARD_STATE_DEVICE_ACCESS_H_

#include <atomic>
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
#include "common/host_transfer.h"

namespace optshard {

class DeviceAccess;

// A copy to memory of the host that the device makes. Thread-safe; no longer of use than the access
// that has begun it.
class DeviceCopy {
 public:
  // Whether the values are there; waits for that, ten minutes at most. Not where what was to be
  // copied never was as it should be, or the device has failed.
  bool IsThere() const;
  // Where they are then.
  const std::shared_ptr<char>& memory() const { return to_; }

 private:
  friend class DeviceAccess;
  enum class Outcome : uint8_t { kAwaited, kThere, kLost };

  DeviceCopy(DeviceAccess* access, uint64_t version, std::shared_ptr<char> to,
             std::unique_ptr<DeviceEvent> copied)
      : access_(*access), version_(version), to_(std::move(to)), copied_(std::move(copied)) {}

  DeviceAccess& access_;
  const uint64_t version_;
  const std::shared_ptr<char> to_;
  const std::unique_ptr<DeviceEvent> copied_;
  mutable std::atomic<Outcome> outcome_{Outcome::kAwaited};
};

// A step never waits for a reader on the host. On the device it waits for the copy that is under
// way, of kWindowBytes at most. Thread-safe, but where it says otherwise. Errors are the device's,
// but where it says otherwise.
class DeviceAccess {
 public:
  // What is copied at once, through memory of the host.
  static constexpr size_t kWindowBytes = size_t{1} << 20;

  struct Range {
    const void* on_device = nullptr;
    size_t at = 0;  // in the memory of the host that it is copied to
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

  // By the step's thread, between steps: `write` changes the state, through transfer(). It comes
  // behind a step that is under way, and nobody reads what is written in part. Returns when the
  // device has done it. After an error the state is that of no step: every later call has that
  // error.
  absl::Status Write(absl::Time deadline,
                     absl::FunctionRef<absl::Status(HostTransfer& transfer)> write);

  // Copies the ranges to memory of the host that is pinned, as they are behind the updates of
  // `version`, and before any later ones. With `trainers`, also behind what is on that stream now,
  // and before what is put there later. Waits for nothing. ABORTED where that is not the version
  // any more.
  absl::StatusOr<std::shared_ptr<const DeviceCopy>> BeginCopy(
      uint64_t version, absl::Span<const Range> ranges, std::shared_ptr<char> to,
      absl::optional<void*> trainers = absl::nullopt);

  // The error of a Write that has left the state of no step.
  absl::Status CheckWritten() const;

  // Whether some updates that were enqueued have not ended, as far as this knows, and nothing says
  // that they will not.
  bool AreUnderWay() const;

  // By the step's thread: between memory of the host and what else is on the device. Deadlines are
  // Clock::Monotonic()'s.
  HostTransfer& transfer() { return transfer_; }

  // What is put on the stream later comes behind all copies that have begun.
  absl::Status OrderBehindCopies(void* stream);

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
               std::unique_ptr<DeviceEvent> copied, std::unique_ptr<DeviceEvent> window_is_full,
               HostTransfer transfer)
      : device_(std::move(device)),
        window_(std::move(window)),
        stream_(std::move(stream)),
        updated_(std::move(updated)),
        copied_(std::move(copied)),
        window_is_full_(std::move(window_is_full)),
        transfer_(std::move(transfer)) {}

  char* window() const { return static_cast<char*>(window_.get()); }

  friend class DeviceCopy;

  absl::Status EnqueueCopies(absl::Span<const Range> ranges, char* to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of copies that have been enqueued, behind the updates of the version.
  absl::Status AwaitCopies(uint64_t version, const DeviceEvent& copied, absl::Time deadline) const;

  const std::shared_ptr<DeviceApi> device_;
  // Freed in the reverse order: the stream's work uses the window.
  const std::shared_ptr<void> window_;
  const std::shared_ptr<void> stream_;
  mutable absl::Mutex mutex_;  // held while work is enqueued
  const std::unique_ptr<DeviceEvent> updated_ ABSL_PT_GUARDED_BY(mutex_);
  const std::unique_ptr<DeviceEvent> copied_ ABSL_PT_GUARDED_BY(mutex_);
  // Of whoever has the window.
  const std::unique_ptr<DeviceEvent> window_is_full_;
  HostTransfer transfer_;  // of the step's thread
  bool window_is_free_ ABSL_GUARDED_BY(mutex_) = true;
  bool is_updating_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status half_written_ ABSL_GUARDED_BY(mutex_);  // by a Write that has failed
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t ended_version_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<absl::Status()> works_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_DEVICE_ACCESS_H_
