#include "client/control/state_destination.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace optshard {
namespace {

// So that what is decoded needs little memory; a multiple of kCodeGrid.
constexpr int64_t kMostElements = 1 << 20;

absl::Status CopyPart(const ShardSnapshot& snapshot, int index, StateDestination& destination) {
  const ShardSnapshot::Part& part = snapshot.parts()[index];
  for (int64_t first = 0; first < part.elements; first += kMostElements) {
    StateDestination::Piece piece;
    piece.parameter = part.parameter;
    piece.slot = part.slot;
    piece.format = part.format;
    piece.offset_elements = part.offset_elements + first;
    piece.elements = std::min(kMostElements, part.elements - first);
    const ShardSnapshot::Bytes bytes = snapshot.Read(index, first, piece.elements);
    const StateDestination::Bytes values = {bytes.data, static_cast<size_t>(piece.bytes())};
    absl::Status taken = destination.Take(piece, absl::MakeConstSpan(&values, 1));
    if (!taken.ok()) return taken;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CopySnapshot(const ShardSnapshot& snapshot, StateDestination& destination) {
  using PartState = ShardSnapshot::PartState;
  const auto parts = static_cast<int>(snapshot.parts().size());
  for (int i = 0; i < parts; ++i) {
    PartState before = PartState::kLive;
    do {
      before = snapshot.state(i);
      absl::Status taken = CopyPart(snapshot, i, destination);
      if (!taken.ok()) return taken;
    } while (before == PartState::kLive && snapshot.state(i) == PartState::kKept);
    if (snapshot.state(i) != PartState::kLost) continue;
    return absl::AbortedError(absl::StrFormat(
        "a step has changed the state of step %d while it was read", snapshot.step()));
  }
  return absl::OkStatus();
}

}  // namespace optshard
