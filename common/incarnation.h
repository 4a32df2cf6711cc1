// What an incarnation is made of: the epoch of the coordinator that gave it out, and a count.
#ifndef OPTSHARD_COMMON_INCARNATION_H_
#define OPTSHARD_COMMON_INCARNATION_H_

#include <cstdint>
#include <string>

#include "common/ids.h"

namespace optshard {

// When a coordinator was started, in milliseconds of wall-clock time since 1970. A coordinator has
// no disk: one that is started anew counts from 1 again, and the epoch tells the processes of its
// run from those of the run before.
using Epoch = uint64_t;

// The lower bits of an incarnation count the lives of a rank, the upper ones are the epoch. So an
// incarnation of a later epoch is higher, and the next one after `i` is `i` + 1.
constexpr int kIncarnationCountBits = 20;

// Of a rank in that epoch.
constexpr Incarnation FirstIncarnation(Epoch epoch) { return (epoch << kIncarnationCountBits) | 1; }
constexpr Epoch EpochOf(Incarnation incarnation) { return incarnation >> kIncarnationCountBits; }
constexpr uint64_t CountOf(Incarnation incarnation) {
  return incarnation & ((Incarnation{1} << kIncarnationCountBits) - 1);
}

// For people: "1763782129123.2" is the second life of a rank in that epoch. Where there is no
// epoch, as with the trainers of a rank, the count alone.
std::string IncarnationText(Incarnation incarnation);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_INCARNATION_H_
