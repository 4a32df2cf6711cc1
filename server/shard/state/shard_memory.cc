#include "server/shard/state/shard_memory.h"

#include <utility>

#include "server/shard/state/mapped_memory.h"

namespace optshard {

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
  return memory;
}

}  // namespace optshard
