// A step's progress as one word, whose parts change at once.
#ifndef OPTSHARD_SERVER_SHARD_STATE_PACKED_PROGRESS_H_
#define OPTSHARD_SERVER_SHARD_STATE_PACKED_PROGRESS_H_

#include <cstdint>

#include "common/membership/membership.h"

namespace optshard {

// finished << 24 | skipped << 8 | outcome
inline uint64_t Pack(const StepProgress& progress) {
  return progress.finished << 24 | static_cast<uint64_t>(progress.skipped) << 8 |
         static_cast<uint64_t>(progress.outcome);
}

inline StepProgress Unpack(uint64_t packed) {
  return {packed >> 24, static_cast<StepOutcome>(packed & 0xff),
          static_cast<SkipCount>(packed >> 8)};
}

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_PACKED_PROGRESS_H_
