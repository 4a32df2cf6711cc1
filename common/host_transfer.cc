#include "common/host_transfer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/device_wait.h"

namespace optshard {

absl::StatusOr<HostTransfer> HostTransfer::Create(DeviceApi* device, const Clock& clock) {
  HostTransfer transfer(device, &clock);
  if (device == nullptr) return transfer;
  for (Window& window : transfer.windows_) {
    absl::StatusOr<std::shared_ptr<void>> memory = device->AllocateOnHost(kWindowBytes);
    if (!memory.ok()) return memory.status();
    window.memory = *std::move(memory);
    absl::StatusOr<std::unique_ptr<DeviceEvent>> copied = device->NewEvent();
    if (!copied.ok()) return copied.status();
    window.copied = *std::move(copied);
  }
  absl::StatusOr<std::shared_ptr<void>> stream = device->NewStream();
  if (!stream.ok()) return stream.status();
  transfer.stream_ = *std::move(stream);
  absl::StatusOr<std::unique_ptr<DeviceEvent>> others = device->NewEvent();
  if (!others.ok()) return others.status();
  transfer.others_ = *std::move(others);
  return transfer;
}

absl::Status HostTransfer::OrderBehind(void* other) {
  if (device_ == nullptr) return absl::OkStatus();
  const absl::Status recorded = device_->Record(*others_, other);
  return recorded.ok() ? device_->OrderAfter(stream(), *others_) : recorded;
}

absl::Status HostTransfer::Write(void* to, const void* from, size_t bytes, absl::Time deadline) {
  if (device_ == nullptr) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }
  for (size_t begin = 0; begin < bytes; begin += kWindowBytes) {
    const size_t count = std::min(kWindowBytes, bytes - begin);
    Window& window = windows_[next_++ % windows_.size()];
    absl::Status status = Await(window, deadline);
    if (!status.ok()) return status;
    std::memcpy(window.memory.get(), static_cast<const char*>(from) + begin, count);
    status = EnqueueCopy(window, static_cast<char*>(to) + begin, window.memory.get(), count);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status HostTransfer::Finish(absl::Time deadline) {
  for (const Window& window : windows_) {
    if (device_ == nullptr) break;
    absl::Status copied = Await(window, deadline);
    if (!copied.ok()) return copied;
  }
  return absl::OkStatus();
}

absl::Status HostTransfer::Read(const void* from, size_t bytes, absl::Time deadline,
                                absl::FunctionRef<void(absl::string_view piece)> take) {
  const char* const data = static_cast<const char*>(from);
  if (device_ == nullptr) {
    for (size_t begin = 0; begin < bytes; begin += kWindowBytes) {
      take({data + begin, std::min(kWindowBytes, bytes - begin)});
    }
    return absl::OkStatus();
  }
  absl::Status status;
  size_t enqueued = 0;
  for (size_t taken = 0; status.ok() && taken < bytes;) {
    // This one, and the one behind it.
    while (status.ok() && enqueued < bytes && enqueued < taken + windows_.size() * kWindowBytes) {
      Window& window = windows_[enqueued / kWindowBytes % windows_.size()];
      const size_t count = std::min(kWindowBytes, bytes - enqueued);
      status = EnqueueCopy(window, window.memory.get(), data + enqueued, count);
      enqueued += count;
    }
    if (!status.ok()) break;
    const Window& window = windows_[taken / kWindowBytes % windows_.size()];
    status = Await(window, deadline);
    if (!status.ok()) break;
    const size_t count = std::min(kWindowBytes, bytes - taken);
    take({static_cast<const char*>(window.memory.get()), count});
    taken += count;
  }
  return status;
}

absl::Status HostTransfer::Read(void* to, const void* from, size_t bytes, absl::Time deadline) {
  char* next = static_cast<char*>(to);
  return Read(from, bytes, deadline, [&next](absl::string_view piece) {
    std::memcpy(next, piece.data(), piece.size());
    next += piece.size();
  });
}

absl::Status HostTransfer::Await(const Window& window, absl::Time deadline) {
  return AwaitReached(*device_, *window.copied, deadline, *clock_);
}

absl::Status HostTransfer::EnqueueCopy(Window& window, void* to, const void* from, size_t bytes) {
  const absl::Status copied = device_->Copy(to, from, bytes, stream());
  return copied.ok() ? device_->Record(*window.copied, stream()) : copied;
}

}  // namespace optshard
