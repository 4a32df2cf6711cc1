// Where the bytes of all owners come from, for whoever puts a whole state dict together.
#ifndef OPTSHARD_CLIENT_OWNER_STATE_READER_H_
#define OPTSHARD_CLIENT_OWNER_STATE_READER_H_

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
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

// For ranks that do not reach all owners over RPC (state_collection.h). Bound to the trainer's
// thread.
class StateReader {
 public:
  virtual ~StateReader() = default;

  // Copies these pieces of what rank `from` keeps to rank `to`, or to all with kFromEveryRank. All
  // ranks make the same calls in the same order, with pieces that differ in `to` alone. After an
  // error no other call may follow, and others may have got something.
  virtual absl::Status Read(Rank from, Rank to, absl::Span<const StatePiece> pieces) = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_STATE_READER_H_
