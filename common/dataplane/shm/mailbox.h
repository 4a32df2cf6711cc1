// Where a rank lies open to the others of its host: what it has sent, how much of theirs it has
// taken, why it left.
#ifndef OPTSHARD_COMMON_DATAPLANE_SHM_MAILBOX_H_
#define OPTSHARD_COMMON_DATAPLANE_SHM_MAILBOX_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/dataplane/data_plane.h"
#include "common/ids.h"
#include "common/link/bell.h"

namespace optshard {

// How a rank ends its use of the plane.
struct Farewell {
  enum Kind : uint32_t {
    kNone = 0,
    kClosing = 1,  // in good order
    kLost = 2,     // it gives up because rank `about` is lost
    kLate = 3,     // it gives up because rank `about` did not come
    kGone = 4,     // it gives up for a reason of its own
  };
  Kind kind = kNone;
  Rank about = -1;
};

// A view of shared memory, zero at first. A message is cut into pieces; a rank's pieces have
// consecutive numbers, and number n lies in slot n % kSlots until all its readers have taken it.
// The rank itself writes the mailbox, its peers only ring its bell. Thread-safe in that sense.
class Mailbox {
 public:
  static constexpr uint64_t kSlots = 8;
  static constexpr size_t kPieceBytes = size_t{256} << 10;

  // What a piece belongs to: two ranks whose operations differ find out.
  struct PieceHeader {
    StepTag tag;
    uint64_t message_bytes = 0;
  };

  static size_t Bytes(int world_size);

  Mailbox() = default;
  explicit Mailbox(void* memory) : memory_(static_cast<char*>(memory)) {}

  // Rung for this rank: by whoever posted something for it, took something that it waits for to be
  // taken, or left.
  Bell& bell() const { return fixed().bell; }

  // --- Pieces that this rank posts.
  void WritePiece(uint64_t number, const PieceHeader& header, const void* data, size_t bytes);
  // How many there are; those below may be read.
  uint64_t posted() const { return fixed().posted.load(std::memory_order_acquire); }
  const PieceHeader& piece_header(uint64_t number) const;
  const void* piece(uint64_t number) const;

  // --- What this rank has taken of others.
  void SetTaken(Rank from, uint64_t pieces) { taken_of(from).store(pieces); }
  uint64_t taken(Rank from) const { return taken_of(from).load(); }

  // --- Whether this rank waits for others to take its pieces; they ring only then.
  void SetWaitsForSpace(bool waits) { fixed().waits_for_space.store(waits); }
  bool waits_for_space() const { return fixed().waits_for_space.load(); }

  // The first one stays.
  void SayFarewell(const Farewell& farewell);
  Farewell farewell() const;

 private:
  struct Fixed {
    alignas(64) Bell bell;
    alignas(64) std::atomic<uint64_t> posted;
    alignas(64) std::atomic<bool> waits_for_space;
    alignas(64) std::atomic<uint64_t> farewell;  // kind << 32 | about
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
