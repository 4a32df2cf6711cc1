#include "common/dataplane/shm/mailbox.h"

#include <cstring>

namespace optshard {

size_t Mailbox::Bytes(int world_size) {
  return sizeof(Fixed) + kSlots * sizeof(Slot) + world_size * sizeof(Taken);
}

void Mailbox::WritePiece(uint64_t number, const PieceHeader& header, const void* data,
                         size_t bytes) {
  Slot& to = slot(number);
  to.header = header;
  if (bytes > 0) std::memcpy(to.data, data, bytes);
  fixed().posted.store(number + 1, std::memory_order_release);
}

const Mailbox::PieceHeader& Mailbox::piece_header(uint64_t number) const {
  return slot(number).header;
}

const void* Mailbox::piece(uint64_t number) const { return slot(number).data; }

void Mailbox::SayFarewell(const Farewell& farewell) {
  uint64_t none = 0;
  fixed().farewell.compare_exchange_strong(
      none, static_cast<uint64_t>(farewell.kind) << 32 | static_cast<uint32_t>(farewell.about));
}

Farewell Mailbox::farewell() const {
  const uint64_t value = fixed().farewell.load();
  return {static_cast<Farewell::Kind>(value >> 32), static_cast<Rank>(value & 0xffffffff)};
}

}  // namespace optshard
