// Reads all owners' state by what the ranks share: the owner of a piece gives it to all, a window
// at a time, and whoever wants it copies it from there.
#ifndef OPTSHARD_CLIENT_OWNER_SHARED_STATE_READER_H_
#define OPTSHARD_CLIENT_OWNER_SHARED_STATE_READER_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/owner/rank_exchange.h"
#include "common/ids.h"

namespace optshard {

// Some elements of a slot (StateAccess::Slots).
struct StatePiece {
  int parameter = 0;
  int slot = 0;
  int64_t offset_elements = 0;
  int64_t elements = 0;
  c10::ScalarType type = c10::ScalarType::Float;  // in which they are wanted
  void* to = nullptr;  // one behind the other, naturally aligned; null where they are not wanted

  int64_t bytes() const { return elements * static_cast<int64_t>(c10::elementSize(type)); }
};

// For ranks that do not reach all owners over RPC (state_collection.h). What a rank reads from
// itself is not shared. A window holds many pieces, or a part of one; beside
// the pieces' own memory there is one window. Bound to the trainer's thread.
class SharedStateReader {
 public:
  // `exchange` outlives it.
  explicit SharedStateReader(RankExchange* exchange) : exchange_(*exchange) {}

  // Copies these pieces of what rank `from` keeps to rank `to`, or to all with kFromEveryRank. All
  // ranks make the same calls in the same order, with pieces that differ in `to` alone. After an
  // error no other call may follow, and others may have got something. What a rank cannot read from
  // itself is Finish's error: the others take part in other calls.
  absl::Status Read(Rank from, Rank to, absl::Span<const StatePiece> pieces);

  // After the last Read, on all ranks. OK on all of them, or on none.
  absl::Status Finish() { return exchange_.Agree(own_); }

 private:
  // Some elements of a piece, and where they lie in the window.
  struct Run {
    const StatePiece* piece = nullptr;
    int64_t first = 0;
    int64_t elements = 0;
    int64_t at = 0;
  };
  absl::Status ReadOwn(const StatePiece& piece, int64_t first, int64_t elements, void* to);
  absl::Status ShareWindow(Rank from, Rank to, absl::Span<const Run> runs, int64_t bytes);

  RankExchange& exchange_;
  std::vector<char> window_;
  absl::Status own_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_SHARED_STATE_READER_H_
