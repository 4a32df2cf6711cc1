// Where the memory of a hosted rank lies.
#ifndef OPTSHARD_SERVER_NODE_RANK_PLACES_H_
#define OPTSHARD_SERVER_NODE_RANK_PLACES_H_

#include <memory>

#include "common/link/segment_place.h"

namespace optshard {

// Thread-compatible value type.
struct RankPlaces {
  std::shared_ptr<const SegmentPlace> records;  // and ledgers: memory of the host
  std::shared_ptr<const SegmentPlace> replica;  // parameters and gradients
  std::shared_ptr<const SegmentPlace> slots;

  static RankPlaces On(const std::shared_ptr<const SegmentPlace>& host) {
    return {host, host, host};
  }
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_RANK_PLACES_H_
