#include "server/shard/state/shard_memory.h"

#include <sys/mman.h>

#include <utility>

#include "common/device_wait.h"
#include "common/errors.h"
#include "common/fatal.h"
#include "common/streaming_copy.h"
#include "server/shard/state/mapped_memory.h"

namespace optshard {
namespace {

// Whole pages, also huge ones, so that these stay whole. What is smaller is copied as fast.
constexpr size_t kExchangeBytes = size_t{2} << 20;

// How many bytes have moved: all or none. `from` stays mapped, without its pages, so that nobody
// else is given its place.
size_t MovePages(void* from, size_t bytes, void* to) {
  if (bytes == 0) return 0;
  constexpr int kHow = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
  if (mremap(from, bytes, bytes, kHow, to) != MAP_FAILED) return bytes;
  // A system that refuses may have unmapped `to` before.
  void* const again =
      mmap(to, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (again != to) Fatal("%d bytes of optimizer state cannot be mapped again in place", bytes);
  return 0;
}

}  // namespace

absl::StatusOr<ShardMemory> ShardMemory::Private(const Bytes& bytes, const std::string& what) {
  struct Mappings {
    MappedMemory slots;
    MappedMemory ledger;
  };
  absl::StatusOr<MappedMemory> slots = MappedMemory::Allocate(bytes.slots, what);
  if (!slots.ok()) return slots.status();
  absl::StatusOr<MappedMemory> ledger = MappedMemory::Allocate(bytes.ledger, what);
  if (!ledger.ok()) return ledger.status();
  ShardMemory memory;
  memory.bytes = bytes;
  memory.slots = slots->data();
  memory.ledger = ledger->data();
  memory.owner = std::make_shared<Mappings>(Mappings{*std::move(slots), *std::move(ledger)});
  memory.is_private = true;
  return memory;
}

absl::StatusOr<ShardMemory> ShardMemory::OnDevice(const Bytes& bytes,
                                                  const std::shared_ptr<DeviceApi>& device,
                                                  const std::string& what) {
  struct Memory {
    std::shared_ptr<DeviceApi> device;
    std::shared_ptr<void> slots;
    MappedMemory ledger;
  };
  absl::StatusOr<std::shared_ptr<void>> slots = ZeroedOn(*device, bytes.slots);
  if (!slots.ok()) return errors::WithContext(slots.status(), what);
  absl::StatusOr<MappedMemory> ledger = MappedMemory::Allocate(bytes.ledger, what);
  if (!ledger.ok()) return ledger.status();
  ShardMemory memory;
  memory.bytes = bytes;
  memory.slots = slots->get();
  memory.ledger = ledger->data();
  memory.owner = std::make_shared<Memory>(Memory{device, *std::move(slots), *std::move(ledger)});
  return memory;
}

void ShardMemory::TakeSlots(ShardMemory& from) {
  size_t exchanged = 0;
  if (is_private && from.is_private) {
    exchanged = MovePages(from.slots, bytes.slots / kExchangeBytes * kExchangeBytes, slots);
  }
  StreamingCopy(static_cast<char*>(slots) + exchanged,
                static_cast<const char*>(from.slots) + exchanged, bytes.slots - exchanged);
}

}  // namespace optshard
