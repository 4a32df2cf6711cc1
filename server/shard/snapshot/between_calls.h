// What an owner has between two calls of its trainer, as far as snapshots need it.
#ifndef OPTSHARD_SERVER_SHARD_SNAPSHOT_BETWEEN_CALLS_H_
#define OPTSHARD_SERVER_SHARD_SNAPSHOT_BETWEEN_CALLS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/hyperparameters.h"
#include "common/ids.h"

namespace optshard {

// Whose state a snapshot has.
struct SnapshotMoment {
  Generation generation = 0;
  StepNumber step = 0;   // the last finished one
  uint64_t skipped = 0;  // calls so far: what trainers keep may differ after each

  friend bool operator==(const SnapshotMoment& a, const SnapshotMoment& b) {
    return a.generation == b.generation && a.step == b.step && a.skipped == b.skipped;
  }
  friend bool operator!=(const SnapshotMoment& a, const SnapshotMoment& b) { return !(a == b); }
};

struct BetweenCalls {
  StepNumber finished = 0;  // the last step
  // False before all ranks have synchronised the parameters: masters are zeros then.
  bool has_values = true;
  // By param group, of the last finished step. Null: not known.
  std::shared_ptr<const std::vector<Hyperparameters>> hyperparameters;
  uint64_t skipped = 0;  // calls of step() so far
};

// What the rank's trainer keeps with the state after this step, which is the last finished one;
// empty: nothing. Any thread, between two calls of the trainer's.
using TrainerBlobAfter = std::function<std::string(StepNumber finished)>;

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SNAPSHOT_BETWEEN_CALLS_H_
