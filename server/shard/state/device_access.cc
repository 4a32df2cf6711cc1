#include "server/shard/state/device_access.h"

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/device_wait.h"

namespace optshard {

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

void DeviceAccess::UpdatesHaveEnded() {
  absl::MutexLock lock(&mutex_);
  ended_version_ = version_;
}

void DeviceAccess::ExpectUpdatesWhile(std::function<absl::Status()> works) {
  absl::MutexLock lock(&mutex_);
  works_ = std::move(works);
}

absl::optional<uint64_t> DeviceAccess::version() const {
  absl::MutexLock lock(&mutex_);
  if (is_updating_) return absl::nullopt;
  return version_;
}

absl::StatusOr<bool> DeviceAccess::TryRead(uint64_t version, absl::Span<const Range> ranges,
                                           absl::Time deadline,
                                           absl::FunctionRef<void(char* window)> take) {
  {
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(&window_is_free_),
                                 deadline - Clock::Monotonic().Now())) {
      return absl::DeadlineExceededError(
          absl::StrCat("others read what is on ", device_->name(), "; ask again"));
    }
    if (is_updating_ || version_ != version) return false;
    absl::Status enqueued = EnqueueCopies(ranges);
    if (!enqueued.ok()) return enqueued;
    window_is_free_ = false;
  }
  const absl::Status copied = AwaitCopies(version, deadline);
  if (copied.ok()) take(window());
  absl::MutexLock lock(&mutex_);
  window_is_free_ = true;
  if (!copied.ok()) return copied;
  return true;
}

absl::Status DeviceAccess::EnqueueCopies(absl::Span<const Range> ranges) {
  absl::Status enqueued = device_->OrderAfter(stream_.get(), *updated_);
  for (const Range& range : ranges) {
    if (!enqueued.ok()) break;
    enqueued =
        device_->Copy(window() + range.in_window, range.on_device, range.bytes, stream_.get());
  }
  // Also behind some of the copies.
  enqueued.Update(device_->Record(*copied_, stream_.get()));
  return enqueued;
}

absl::Status DeviceAccess::AwaitCopies(uint64_t version, absl::Time deadline) {
  absl::Status copied = AwaitReached(*device_, *copied_, deadline, Clock::Monotonic());
  if (!copied.ok()) return copied;
  std::function<absl::Status()> works;
  {
    absl::MutexLock lock(&mutex_);
    if (version > ended_version_) works = works_;
  }
  // Asked once they have ended: the error is there before.
  return works == nullptr ? absl::OkStatus() : works();
}

}  // namespace optshard
