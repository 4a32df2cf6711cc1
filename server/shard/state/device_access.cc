#include "server/shard/state/device_access.h"

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/device_wait.h"
#include "common/errors.h"
#include "common/log.h"

namespace optshard {
namespace {

constexpr absl::Duration kLongestCopy = absl::Minutes(10);

}  // namespace

bool DeviceCopy::IsThere() const {
  if (outcome_ == Outcome::kAwaited) {
    const absl::Time deadline = Clock::Monotonic().Now() + kLongestCopy;
    const absl::Status copied = access_.AwaitCopies(version_, *copied_, deadline);
    // The first look counts for all later ones.
    Outcome awaited = Outcome::kAwaited;
    const bool is_first =
        outcome_.compare_exchange_strong(awaited, copied.ok() ? Outcome::kThere : Outcome::kLost);
    if (is_first && !copied.ok()) {
      Log(LogLevel::kWarning, LogContext{}, "what was copied from %s is lost: %s",
          access_.device_->name(), copied.ToString());
    }
  }
  return outcome_ == Outcome::kThere;
}

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
  absl::StatusOr<std::unique_ptr<DeviceEvent>> window_is_full = device->NewEvent();
  if (!window_is_full.ok()) return window_is_full.status();
  absl::StatusOr<HostTransfer> transfer = HostTransfer::Create(device.get(), Clock::Monotonic());
  if (!transfer.ok()) return transfer.status();
  return std::unique_ptr<DeviceAccess>(new DeviceAccess(
      std::move(device), *std::move(stream), *std::move(window), *std::move(updated),
      *std::move(copied), *std::move(window_is_full), *std::move(transfer)));
}

absl::Status DeviceAccess::BeginUpdates(void* stream) {
  absl::MutexLock lock(&mutex_);
  if (!half_written_.ok()) return half_written_;
  absl::Status ordered = device_->OrderAfter(stream, *copied_);
  is_updating_ = ordered.ok();
  return ordered;
}

absl::Status DeviceAccess::OrderBehindCopies(void* stream) {
  absl::MutexLock lock(&mutex_);
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

absl::Status DeviceAccess::Write(absl::Time deadline,
                                 absl::FunctionRef<absl::Status(HostTransfer& transfer)> write) {
  absl::Status status = BeginUpdates(transfer_.stream());
  if (!status.ok()) return status;
  bool is_last = false;
  {
    absl::MutexLock lock(&mutex_);
    status = device_->OrderAfter(transfer_.stream(), *updated_);
    is_last = ended_version_ == version_;
  }
  if (status.ok()) status = write(transfer_);
  if (status.ok()) status = transfer_.Finish(deadline);
  if (status.ok()) status = EndUpdates(transfer_.stream());
  if (status.ok() && is_last) UpdatesHaveEnded();
  if (status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  half_written_ = errors::WithContext(status, "the state was written in part, and is of no step");
  return half_written_;
}

absl::StatusOr<std::shared_ptr<const DeviceCopy>> DeviceAccess::BeginCopy(
    uint64_t version, absl::Span<const Range> ranges, std::shared_ptr<char> to,
    absl::optional<void*> trainers) {
  absl::StatusOr<std::unique_ptr<DeviceEvent>> ready = device_->NewEvent();
  if (!ready.ok()) return ready.status();
  absl::StatusOr<std::unique_ptr<DeviceEvent>> copied = device_->NewEvent();
  if (!copied.ok()) return copied.status();
  absl::MutexLock lock(&mutex_);
  if (!half_written_.ok()) return half_written_;
  if (is_updating_ || version_ != version) return absl::AbortedError("a step has begun");
  absl::Status status;
  if (trainers.has_value()) {
    status = device_->Record(**ready, *trainers);
    if (status.ok()) status = device_->OrderAfter(stream_.get(), **ready);
  }
  if (status.ok()) status = EnqueueCopies(ranges, to.get());
  if (status.ok()) status = device_->Record(**copied, stream_.get());
  if (status.ok() && trainers.has_value()) status = device_->OrderAfter(*trainers, **copied);
  if (!status.ok()) return status;
  return std::shared_ptr<const DeviceCopy>(
      new DeviceCopy(this, version, std::move(to), *std::move(copied)));
}

absl::Status DeviceAccess::CheckWritten() const {
  absl::MutexLock lock(&mutex_);
  return half_written_;
}

bool DeviceAccess::AreUnderWay() const {
  std::function<absl::Status()> works;
  {
    absl::MutexLock lock(&mutex_);
    if (is_updating_ || version_ == ended_version_) return false;
    works = works_;
  }
  return works == nullptr || works().ok();
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
    if (!half_written_.ok()) return half_written_;
    if (is_updating_ || version_ != version) return false;
    absl::Status enqueued = EnqueueCopies(ranges, window());
    if (enqueued.ok()) enqueued = device_->Record(*window_is_full_, stream_.get());
    if (!enqueued.ok()) return enqueued;
    window_is_free_ = false;
  }
  const absl::Status copied = AwaitCopies(version, *window_is_full_, deadline);
  if (copied.ok()) take(window());
  absl::MutexLock lock(&mutex_);
  window_is_free_ = true;
  if (!copied.ok()) return copied;
  return true;
}

absl::Status DeviceAccess::EnqueueCopies(absl::Span<const Range> ranges, char* to) {
  absl::Status enqueued = device_->OrderAfter(stream_.get(), *updated_);
  for (const Range& range : ranges) {
    if (!enqueued.ok()) break;
    enqueued = device_->Copy(to + range.at, range.on_device, range.bytes, stream_.get());
  }
  // Also behind some of the copies.
  enqueued.Update(device_->Record(*copied_, stream_.get()));
  return enqueued;
}

absl::Status DeviceAccess::AwaitCopies(uint64_t version, const DeviceEvent& copied,
                                       absl::Time deadline) const {
  absl::Status reached = AwaitReached(*device_, copied, deadline, Clock::Monotonic());
  if (!reached.ok()) return reached;
  std::function<absl::Status()> works;
  {
    absl::MutexLock lock(&mutex_);
    if (version > ended_version_) works = works_;
  }
  // Asked once they have ended: the error is there before.
  return works == nullptr ? absl::OkStatus() : works();
}

}  // namespace optshard
