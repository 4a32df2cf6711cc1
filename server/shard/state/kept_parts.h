// Which elements of which slots a rank keeps, for whoever asks for some.
#ifndef OPTSHARD_SERVER_SHARD_STATE_KEPT_PARTS_H_
#define OPTSHARD_SERVER_SHARD_STATE_KEPT_PARTS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "common/generation_shape.h"
#include "common/ids.h"
#include "server/shard/state/parameter_slots.h"
#include "server/shard/state/shard_store.h"

namespace optshard {

// Thread-safe. The store outlives it.
struct KeptParts {
  Rank rank = 0;
  std::shared_ptr<const GenerationShape> shape;
  const ShardStore* store = nullptr;

  // OUT_OF_RANGE, saying what is kept, unless all of [offset, offset + elements) of the slot is
  // kept here. The parameter is one of the space, and the number of elements not negative.
  absl::Status Check(int parameter, const ParameterSlot& slot, int64_t offset_elements,
                     int64_t elements) const;

 private:
  absl::Status CheckOwned(int parameter, int64_t offset_elements, int64_t elements) const;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_KEPT_PARTS_H_
