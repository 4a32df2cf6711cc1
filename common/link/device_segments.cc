#include "common/link/device_segments.h"

#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/device_wait.h"
#include "common/errors.h"
#include "common/link/segment_label.h"
#include "common/request_id.h"

namespace optshard {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kMaxBytes = std::numeric_limits<size_t>::max() / 2;
constexpr absl::Duration kLongestCopy = absl::Minutes(1);

// In a page behind the data.
struct DeviceLabel {
  StoredLabel label;
  uint64_t token;  // of this segment alone
};
static_assert(sizeof(DeviceLabel) == 56, "processes of different builds read it");

size_t LabelAt(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }
size_t AllBytes(size_t bytes) { return LabelAt(bytes) + kPageBytes; }

void* LabelPlace(const std::shared_ptr<void>& memory, size_t bytes) {
  return static_cast<char*>(memory.get()) + LabelAt(bytes);
}

// One of the two is pinned memory of the host.
absl::Status CopyLabel(DeviceApi& device, void* to, const void* from) {
  const absl::StatusOr<std::shared_ptr<void>> stream = device.NewStream();
  if (!stream.ok()) return stream.status();
  absl::Status enqueued = device.Copy(to, from, sizeof(DeviceLabel), stream->get());
  if (!enqueued.ok()) return enqueued;
  const Clock& clock = Clock::Monotonic();
  return AwaitStream(device, stream->get(), clock.Now() + kLongestCopy, clock);
}

absl::Status WriteLabel(DeviceApi& device, void* at, const DeviceLabel& label) {
  const absl::StatusOr<std::shared_ptr<void>> pinned = device.AllocateOnHost(sizeof(DeviceLabel));
  if (!pinned.ok()) return pinned.status();
  *static_cast<DeviceLabel*>(pinned->get()) = label;
  return CopyLabel(device, at, pinned->get());
}

absl::StatusOr<DeviceLabel> ReadLabel(DeviceApi& device, const void* at) {
  const absl::StatusOr<std::shared_ptr<void>> pinned = device.AllocateOnHost(sizeof(DeviceLabel));
  if (!pinned.ok()) return pinned.status();
  const absl::Status copied = CopyLabel(device, pinned->get(), at);
  if (!copied.ok()) return copied;
  return *static_cast<const DeviceLabel*>(pinned->get());
}

std::string On(const DeviceApi& device, const std::string& what) {
  return absl::StrCat("segment of ", what, " on ", device.name());
}

}  // namespace

absl::StatusOr<Segment> DeviceSegments::Create(const SegmentLabel& label, size_t bytes,
                                               const std::string& what) const {
  if (bytes > kMaxBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(On(*device_, what), ": ", bytes, " bytes, at most ", kMaxBytes, " go"));
  }
  absl::StatusOr<DeviceApi::SharedMemory> shared = device_->AllocateShared(AllBytes(bytes));
  if (!shared.ok()) return errors::WithContext(shared.status(), On(*device_, what));
  const DeviceLabel stored = {Stored(label, bytes), NewToken()};
  absl::Status made = ZeroNow(*device_, shared->memory.get(), AllBytes(bytes));
  if (made.ok()) made = WriteLabel(*device_, LabelPlace(shared->memory, bytes), stored);
  if (!made.ok()) return errors::WithContext(made, On(*device_, what));
  return Segment::OnDevice(std::move(shared->descriptor), std::move(shared->memory), bytes,
                           stored.token);
}

absl::StatusOr<Segment> DeviceSegments::Open(UniqueFd fd, const SegmentLabel& expected,
                                             size_t bytes, const std::string& what) const {
  if (bytes > kMaxBytes) {
    return SegmentRefused(what, absl::StrCat(bytes, " bytes are expected of it"));
  }
  absl::StatusOr<std::shared_ptr<void>> memory = device_->MapShared(fd.get(), AllBytes(bytes));
  if (!memory.ok()) return errors::WithContext(memory.status(), On(*device_, what));
  const absl::StatusOr<DeviceLabel> label = ReadLabel(*device_, LabelPlace(*memory, bytes));
  if (!label.ok()) return errors::WithContext(label.status(), On(*device_, what));
  const absl::Status is_it = CheckLabel(label->label, Stored(expected, bytes), what);
  if (!is_it.ok()) return is_it;
  return Segment::OnDevice(std::move(fd), *std::move(memory), bytes, label->token);
}

absl::StatusOr<bool> DeviceSegments::IsOf(const Segment& segment, int fd) const {
  const absl::StatusOr<std::shared_ptr<void>> memory =
      device_->MapShared(fd, AllBytes(segment.bytes()));
  if (absl::IsInvalidArgument(memory.status())) return false;
  if (!memory.ok()) return memory.status();
  const absl::StatusOr<DeviceLabel> label =
      ReadLabel(*device_, LabelPlace(*memory, segment.bytes()));
  if (!label.ok()) return label.status();
  return IsLabel(label->label) && label->token == segment.token();
}

}  // namespace optshard
