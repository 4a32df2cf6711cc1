#include "server/shard/state/device_slot_memory.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/block_code.h"
#include "common/clock.h"
#include "common/device_wait.h"
#include "server/shard/state/slot_memory.h"

namespace optshard {
namespace {

constexpr absl::Duration kLongestFill = absl::Minutes(1);
// Copied over and over again. A multiple of kCodeGrid.
constexpr int64_t kFillElements = 256 * kCodeGrid;

SlotType TypeOf(const SlotArray& array) {
  SlotType type;
  if (array.is_coded()) {
    type.code = array.coded().code;
  } else {
    type.dtype = array.dtype();
  }
  return type;
}

}  // namespace

absl::Status FillSlotOn(DeviceApi& device, const SlotArray& array, int64_t elements, double value) {
  const int64_t at_once = std::min(elements, kFillElements);
  std::vector<char> memory(SlotArrays::Bytes(at_once, TypeOf(array)));
  const SlotArray filled = SlotArrays(memory.data()).Take(at_once, TypeOf(array));
  FillSlot(filled, at_once, value);
  const absl::StatusOr<std::shared_ptr<void>> stream = device.NewStream();
  if (!stream.ok()) return stream.status();
  absl::Status status;
  for (int64_t begin = 0; begin < elements && status.ok(); begin += at_once) {
    const int64_t count = std::min(at_once, elements - begin);
    if (array.is_coded()) {
      const CodedArray to = array.coded().From(begin);
      const CodedArray& from = filled.coded();
      status = device.Copy(to.codes, from.codes, CodeBytes(to.code, count), stream->get());
      if (!status.ok()) break;
      status = device.Copy(to.scales, from.scales, ScaleBytes(to.code, count), stream->get());
    } else {
      status = device.Copy(array.plain().From(begin).data(), filled.plain().data(),
                           count * static_cast<int64_t>(SizeOf(array.dtype())), stream->get());
    }
  }
  // Also behind what was copied before an error: it reads from memory that goes.
  const Clock& clock = Clock::Monotonic();
  status.Update(AwaitStream(device, stream->get(), clock.Now() + kLongestFill, clock));
  return status;
}

}  // namespace optshard
