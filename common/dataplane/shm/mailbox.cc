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

void Mailbox::SetDisconnectReason(const DisconnectReason& reason) {
  uint64_t none = 0;
  fixed().disconnect_reason.compare_exchange_strong(none, reason.Encode());
}

DisconnectReason Mailbox::disconnect_reason() const {
  return DisconnectReason::Decode(fixed().disconnect_reason.load());
}

// Both look at the disconnect reason first: a rank that closes has posted and taken all that it
// ever will.
bool Mailbox::ClosedWithoutPosting(uint64_t number) const {
  return disconnect_reason().kind == DisconnectReason::kClosed && posted() <= number;
}

bool Mailbox::ClosedWithoutTaking(Rank from, uint64_t number) const {
  return disconnect_reason().kind == DisconnectReason::kClosed && taken(from) <= number;
}

}  // namespace optshard
