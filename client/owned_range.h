// Which elements of a parameter a rank owns.
#ifndef OPTSHARD_CLIENT_OWNED_RANGE_H_
#define OPTSHARD_CLIENT_OWNED_RANGE_H_

#include <cstdint>

#include "common/ids.h"

namespace optshard {

// A range of a parameter's elements, in row-major order, and the rank that keeps their state.
struct OwnedRange {
  Rank rank = 0;
  int64_t offset_elements = 0;
  int64_t elements = 0;

  friend bool operator==(const OwnedRange& a, const OwnedRange& b) {
    return a.rank == b.rank && a.offset_elements == b.offset_elements && a.elements == b.elements;
  }
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNED_RANGE_H_
