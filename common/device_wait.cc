#include "common/device_wait.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace optshard {
namespace {

constexpr absl::Duration kPollInterval = absl::Microseconds(50);
constexpr absl::Duration kLongestZeroing = absl::Minutes(1);

}  // namespace

absl::Status AwaitReached(DeviceApi& device, const DeviceEvent& event, absl::Time deadline,
                          const Clock& clock) {
  while (true) {
    const absl::StatusOr<bool> reached = device.IsReached(event);
    if (!reached.ok()) return reached.status();
    if (*reached) return absl::OkStatus();
    if (clock.Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(device.name(), " has not done in time what it was given"));
    }
    absl::SleepFor(kPollInterval);
  }
}

absl::Status AwaitStream(DeviceApi& device, void* stream, absl::Time deadline, const Clock& clock) {
  const absl::StatusOr<std::unique_ptr<DeviceEvent>> event = device.NewEvent();
  if (!event.ok()) return event.status();
  const absl::Status recorded = device.Record(**event, stream);
  return recorded.ok() ? AwaitReached(device, **event, deadline, clock) : recorded;
}

absl::Status ZeroNow(DeviceApi& device, void* memory, size_t bytes) {
  const absl::StatusOr<std::shared_ptr<void>> stream = device.NewStream();
  if (!stream.ok()) return stream.status();
  const Clock& clock = Clock::Monotonic();
  absl::Status enqueued = device.Zero(memory, bytes, stream->get());
  if (!enqueued.ok()) return enqueued;
  return AwaitStream(device, stream->get(), clock.Now() + kLongestZeroing, clock);
}

absl::StatusOr<std::shared_ptr<void>> ZeroedOn(DeviceApi& device, size_t bytes) {
  if (bytes == 0) return std::shared_ptr<void>();
  absl::StatusOr<std::shared_ptr<void>> memory = device.Allocate(bytes);
  if (!memory.ok()) return memory;
  const absl::Status zeroed = ZeroNow(device, memory->get(), bytes);
  if (!zeroed.ok()) return zeroed;
  return memory;
}

}  // namespace optshard
