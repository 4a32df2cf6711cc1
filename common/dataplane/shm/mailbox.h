// The memory through which one rank sends to the others of its host: its messages, how many of
// theirs it has taken, and why it left.
#ifndef OPTSHARD_COMMON_DATAPLANE_SHM_MAILBOX_H_
#define OPTSHARD_COMMON_DATAPLANE_SHM_MAILBOX_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/dataplane/data_plane.h"
#include "common/dataplane/disconnect_reason.h"
#include "common/ids.h"
#include "common/link/bell.h"

namespace optshard {

// A view of shared memory, which is zero at first. A message is cut into pieces. A rank's pieces
// have consecutive numbers; piece n lies in slot n % kSlots until all its readers have taken it.
// The rank itself writes its mailbox; its peers read it and ring its bell. Safe for threads that
// keep to that.
class Mailbox {
 public:
  static constexpr uint64_t kSlots = 8;
  static constexpr size_t kPieceBytes = size_t{256} << 10;

  // The message that a piece belongs to: ranks compare it, and so notice operations that differ.
  struct PieceHeader {
    StepTag tag;
    uint64_t message_bytes = 0;
  };

  static size_t Bytes(int world_size);

  Mailbox() = default;
  explicit Mailbox(void* memory) : memory_(static_cast<char*>(memory)) {}

  // Wakes this rank. A peer rings it when it has posted a piece for this rank, has taken one that
  // this rank waits to be taken, or leaves.
  Bell& bell() const { return fixed().bell; }

  // --- The pieces that this rank posts.
  void WritePiece(uint64_t number, const PieceHeader& header, const void* data, size_t bytes);
  // How many there are. Pieces with lower numbers may be read.
  uint64_t posted() const { return fixed().posted.load(std::memory_order_acquire); }
  const PieceHeader& piece_header(uint64_t number) const;
  const void* piece(uint64_t number) const;

  // --- How many pieces of each other rank this rank has taken.
  void SetTaken(Rank from, uint64_t pieces) { taken_of(from).store(pieces); }
  uint64_t taken(Rank from) const { return taken_of(from).load(); }

  // --- Whether this rank waits for others to take its pieces. Only then do they ring when they
  // did.
  void SetWaitsForSpace(bool waits) { fixed().waits_for_space.store(waits); }
  bool waits_for_space() const { return fixed().waits_for_space.load(); }

  // Why this rank leaves. The first reason stays.
  void SetDisconnectReason(const DisconnectReason& reason);
  DisconnectReason disconnect_reason() const;

  // The rank has closed the plane and will never post this piece, or take this piece of `from`.
  // What it did before it closed counts, also where this is asked at the same moment.
  bool ClosedWithoutPosting(uint64_t number) const;
  bool ClosedWithoutTaking(Rank from, uint64_t number) const;

 private:
  struct Fixed {
    alignas(64) Bell bell;
    alignas(64) std::atomic<uint64_t> posted;
    alignas(64) std::atomic<bool> waits_for_space;
    alignas(64) std::atomic<uint64_t> disconnect_reason;  // encoded
  };
  struct alignas(64) Slot {
    PieceHeader header;
    alignas(64) char data[kPieceBytes];
  };
  struct alignas(64) Taken {
    std::atomic<uint64_t> pieces;
  };

  Fixed& fixed() const { return *reinterpret_cast<Fixed*>(memory_); }
  Slot& slot(uint64_t number) const {
    return reinterpret_cast<Slot*>(memory_ + sizeof(Fixed))[number % kSlots];
  }
  std::atomic<uint64_t>& taken_of(Rank from) const {
    return reinterpret_cast<Taken*>(memory_ + sizeof(Fixed) + kSlots * sizeof(Slot))[from].pieces;
  }

  char* memory_ = nullptr;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_SHM_MAILBOX_H_
