// Reads all owners' state by what the ranks share: the owner of a piece gives it to all, a window
// at a time, and whoever wants it copies it from there.
#ifndef OPTSHARD_CLIENT_OWNER_SHARED_STATE_READER_H_
#define OPTSHARD_CLIENT_OWNER_SHARED_STATE_READER_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/owner/rank_exchange.h"
#include "client/owner/state_reader.h"

namespace optshard {

// What a rank reads from itself is not shared. A window holds many pieces, or a part of one; beside
// the pieces' own memory there is one window.
class SharedStateReader final : public StateReader {
 public:
  // `exchange` outlives it.
  explicit SharedStateReader(RankExchange* exchange) : exchange_(*exchange) {}

  // What a rank cannot read from itself is Finish's error: the others take part in other calls.
  absl::Status Read(Rank from, Rank to, absl::Span<const StatePiece> pieces) override;

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
