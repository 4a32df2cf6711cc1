#include "server/shard/engine/row_mark_gather.h"

#include <algorithm>
#include <memory>

#include "absl/status/status.h"

namespace optshard {

absl::StatusOr<std::vector<uint64_t>> GatherRowMarks(DataPlane& plane, const StepTag& tag,
                                                     absl::Span<const uint64_t> own,
                                                     absl::Time deadline) {
  const auto world_size = static_cast<size_t>(plane.world_size());
  std::vector<uint64_t> all(own.size() * world_size);
  std::vector<uint64_t> piece;
  StepTag of_piece = tag;
  of_piece.bucket = 0;
  for (size_t first = 0; first < own.size(); first += kWordsOfAGather, ++of_piece.bucket) {
    const size_t words = std::min(kWordsOfAGather, own.size() - first);
    piece.resize(words * world_size);
    absl::StatusOr<std::unique_ptr<Ticket>> ticket = plane.AllGather(
        of_piece, ExecutionContext(), own.data() + first, piece.data(), words * sizeof(uint64_t));
    if (!ticket.ok()) return ticket.status();
    absl::Status gathered = (*ticket)->Wait(deadline);
    if (!gathered.ok()) return gathered;
    for (size_t rank = 0; rank < world_size; ++rank) {
      std::copy_n(&piece[rank * words], words, &all[rank * own.size() + first]);
    }
  }
  return all;
}

}  // namespace optshard
