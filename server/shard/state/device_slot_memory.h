// The arrays of slots in the memory of a device (slot_memory.h has those of the host).
#ifndef OPTSHARD_SERVER_SHARD_STATE_DEVICE_SLOT_MEMORY_H_
#define OPTSHARD_SERVER_SHARD_STATE_DEVICE_SLOT_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/device_api.h"
#include "common/host_transfer.h"
#include "server/update/slot_array.h"

namespace optshard {

// The values of the array's first elements, or their codes and then their scales. Of a coded array
// with more elements these are whole blocks.
struct SlotBytes {
  void* data = nullptr;
  size_t bytes = 0;
};
std::vector<SlotBytes> BytesOf(const SlotArray& array, int64_t elements);

// As FillSlot and WriteSlot, of an array on the transfer's device, which has done it after
// HostTransfer::Finish. Errors are the transfer's.
absl::Status FillSlotOn(HostTransfer& transfer, const SlotArray& array, int64_t elements,
                        double value, absl::Time deadline);
absl::Status WriteSlotOn(HostTransfer& transfer, const SlotArray& array, int64_t first,
                         int64_t count, const double* from, absl::Time deadline);

// Sets arrays of slots, on a device or in memory of the host, to their initial values.
// Thread-compatible.
class SlotFiller {
 public:
  // The device outlives it; null: memory of the host.
  explicit SlotFiller(DeviceApi* device);

  // What HostTransfer::Create says, and as FillSlotOn.
  absl::Status Fill(const SlotArray& array, int64_t elements, double value);
  // Then they are filled. DEADLINE_EXCEEDED ten minutes after the filler was made.
  absl::Status Finish();

 private:
  DeviceApi* const device_;
  const absl::Time deadline_;
  // Most slots begin as zeros: made for the first that does not.
  absl::optional<HostTransfer> transfer_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_DEVICE_SLOT_MEMORY_H_
