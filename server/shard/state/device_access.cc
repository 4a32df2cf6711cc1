#include "server/shard/state/device_access.h"

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/device_wait.h"

namespace optshard {
namespace {

constexpr absl::Duration kLongestCopy = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceAccess>> DeviceAccess::Create(
    std::shared_ptr<DeviceApi> device) {
  absl::StatusOr<std::shared_ptr<void>> stream = device->NewStream();
  if (!stream.ok()) return stream.status();
  absl::StatusOr<std::shared_ptr<void>> window = device->AllocateOnHost(kWindowBytes);
  if (!window.ok()) return window.status();
  absl::StatusOr<std::unique_ptr<DeviceEvent>> updated = device->NewEvent();
  if (!updated.ok()) return updated.status();
  absl::StatusOr<std::unique_ptr<DeviceEvent>> copied = device->NewEvent();
  if (!copied.ok()) return copied.status();
  return std::unique_ptr<DeviceAccess>(new DeviceAccess(std::move(device), *std::move(stream),
                                                        *std::move(window), *std::move(updated),
                                                        *std::move(copied)));
}

absl::Status DeviceAccess::BeginUpdates(void* stream) {
  absl::MutexLock lock(&mutex_);
  is_updating_ = true;
  return device_->OrderAfter(stream, *copied_);
}

absl::Status DeviceAccess::EndUpdates(void* stream) {
  absl::MutexLock lock(&mutex_);
  absl::Status recorded = device_->Record(*updated_, stream);
  if (!recorded.ok()) return recorded;
  is_updating_ = false;
  ++version_;
  return recorded;
}

absl::optional<uint64_t> DeviceAccess::version() const {
  absl::MutexLock lock(&mutex_);
  if (is_updating_) return absl::nullopt;
  return version_;
}

absl::StatusOr<bool> DeviceAccess::TryRead(uint64_t version, absl::Span<const Range> ranges,
                                           absl::FunctionRef<void(char* window)> take) {
  absl::MutexLock window_lock(&window_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    if (is_updating_ || version_ != version) return false;
    absl::Status copied = device_->OrderAfter(stream_.get(), *updated_);
    for (const Range& range : ranges) {
      if (!copied.ok()) break;
      copied =
          device_->Copy(window() + range.in_window, range.on_device, range.bytes, stream_.get());
    }
    // Also behind some of the copies: the window is in use until then.
    copied.Update(device_->Record(*copied_, stream_.get()));
    if (!copied.ok()) return copied;
  }
  const Clock& clock = Clock::Monotonic();
  absl::Status waited = AwaitReached(*device_, *copied_, clock.Now() + kLongestCopy, clock);
  if (!waited.ok()) return waited;
  take(window());
  return true;
}

}  // namespace optshard
