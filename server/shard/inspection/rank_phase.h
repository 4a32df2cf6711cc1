// What a rank is doing just now.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_RANK_PHASE_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_RANK_PHASE_H_

#include <cstdint>

#include "absl/time/time.h"

namespace optshard {

// The numbers do not change between versions, because messages carry them.
enum class RankPhase : uint8_t {
  kIdle = 1,     // between two steps: its trainer computes gradients
  kPrepare = 2,  // gathers gradients
  kCommit = 3,   // has voted and waits for all ranks' votes
  kApply = 4,    // updates and publishes parameters
};

struct RankActivity {
  RankPhase phase = RankPhase::kIdle;
  absl::Duration lasts;  // for how long already
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_RANK_PHASE_H_
