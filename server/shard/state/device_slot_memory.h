// The arrays of slots in the memory of a device (slot_memory.h has those of the host).
#ifndef OPTSHARD_SERVER_SHARD_STATE_DEVICE_SLOT_MEMORY_H_
#define OPTSHARD_SERVER_SHARD_STATE_DEVICE_SLOT_MEMORY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/device_api.h"
#include "server/update/slot_array.h"

namespace optshard {

// As FillSlot. Waits until the device has done it, a minute at most (DEADLINE_EXCEEDED). Other
// errors are the device's.
absl::Status FillSlotOn(DeviceApi& device, const SlotArray& array, int64_t elements, double value);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_DEVICE_SLOT_MEMORY_H_
