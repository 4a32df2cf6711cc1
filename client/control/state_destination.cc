#include "client/control/state_destination.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace optshard {
namespace {

// So that what is decoded needs little memory; a multiple of kCodeGrid.
constexpr int64_t kMostElements = 1 << 20;

}  // namespace

absl::Status CopySnapshot(const ShardSnapshot& snapshot, StateDestination& destination) {
  const auto parts = static_cast<int>(snapshot.parts().size());
  for (int i = 0; i < parts; ++i) {
    const ShardSnapshot::Part& part = snapshot.parts()[i];
    for (int64_t first = 0; first < part.elements; first += kMostElements) {
      StateDestination::Piece piece;
      piece.parameter = part.parameter;
      piece.slot = part.slot;
      piece.format = part.format;
      piece.offset_elements = part.offset_elements + first;
      piece.elements = std::min(kMostElements, part.elements - first);
      const ShardSnapshot::Bytes bytes = snapshot.Read(i, first, piece.elements);
      const StateDestination::Bytes values = {bytes.data, static_cast<size_t>(piece.bytes())};
      absl::Status taken = destination.Take(piece, absl::MakeConstSpan(&values, 1));
      if (!taken.ok()) return taken;
    }
  }
  for (int i = 0; i < parts; ++i) {
    if (snapshot.state(i) != ShardSnapshot::PartState::kLost) continue;
    return absl::AbortedError(absl::StrFormat(
        "a step has changed the state of step %d while it was read", snapshot.step()));
  }
  return absl::OkStatus();
}

}  // namespace optshard
