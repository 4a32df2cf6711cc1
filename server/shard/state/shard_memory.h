// The memory that holds a shard owner's state.
#ifndef OPTSHARD_SERVER_SHARD_STATE_SHARD_MEMORY_H_
#define OPTSHARD_SERVER_SHARD_STATE_SHARD_MEMORY_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace optshard {

class DeviceApi;

// The slots, which may be in the memory of a device, and the ledger that says of which step they
// are (shard_ledger.h), which is in the host's. Both are zeros at first, 64-byte aligned, and may
// have outlived the process that wrote them. A value: copies share the memory. Thread-compatible.
struct ShardMemory {
  struct Bytes {
    size_t slots = 0;
    size_t ledger = 0;
  };

  Bytes bytes;
  void* slots = nullptr;  // null: no bytes
  void* ledger = nullptr;
  std::shared_ptr<const void> owner;  // keeps both mapped
  bool is_private = false;            // the host's, and nobody else can have mapped it

  // Private to this process; it ends with it. RESOURCE_EXHAUSTED naming `what`.
  static absl::StatusOr<ShardMemory> Private(const Bytes& bytes, const std::string& what);

  // Likewise, with the slots on the device. RESOURCE_EXHAUSTED, and the device's other errors.
  static absl::StatusOr<ShardMemory> OnDevice(const Bytes& bytes,
                                              const std::shared_ptr<DeviceApi>& device,
                                              const std::string& what);

  // In memory of the host: the slots become those of `from`, which has as many bytes of them, and
  // whose own are of no use any more. Where both are private, pages change hands and nothing is
  // copied. Cannot fail. Other threads may read the slots meanwhile, and get old bytes or new ones.
  void TakeSlots(ShardMemory& from);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_SHARD_MEMORY_H_
