// Where state goes that is read from shard owners.
#ifndef OPTSHARD_CLIENT_CONTROL_STATE_DESTINATION_H_
#define OPTSHARD_CLIENT_CONTROL_STATE_DESTINATION_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/state_format.h"
#include "server/shard/snapshot/shard_snapshot.h"

namespace optshard {

// Thread-safe: owners send in parallel.
class StateDestination {
 public:
  // Elements of a slot, in the format in which they come (ShardSnapshot::Part).
  struct Piece {
    int32_t parameter = 0;
    absl::string_view slot;
    StateFormat format = StateFormat::kFloat32;
    int64_t offset_elements = 0;
    int64_t elements = 0;

    int64_t bytes() const { return elements * ElementBytes(format); }
  };

  struct Bytes {
    const char* data = nullptr;
    size_t size = 0;
  };

  virtual ~StateDestination() = default;

  // Copies the elements, which are `values` one behind the other, piece.bytes() in all. The same
  // elements may come again, and the last ones count. An owner gives the slots of a parameter that
  // are one number before all others; each owner of a part of the parameter gives those. What was
  // checked of the piece are its signs alone. An error ends the reading.
  virtual absl::Status Take(const Piece& piece, absl::Span<const Bytes> values) = 0;
};

// Copies all of an owner's snapshot in this process. ABORTED where a step has changed some of it.
absl::Status CopySnapshot(const ShardSnapshot& snapshot, StateDestination& destination);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_CONTROL_STATE_DESTINATION_H_
