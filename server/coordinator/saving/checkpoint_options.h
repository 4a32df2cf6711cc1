// Where and when a coordinator saves checkpoints, unless it is told otherwise.
#ifndef OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINT_OPTIONS_H_
#define OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINT_OPTIONS_H_

#include <string>

#include "common/ids.h"
#include "server/checkpoint/checkpoint_list.h"

namespace optshard {

// Thread-compatible value type.
struct CheckpointOptions {
  std::string directory;  // where a request names none; empty: every request names one
  StepNumber every = 0;   // steps after which the coordinator saves by itself; 0: never
  PrunePolicy prune;      // of what is saved to that directory
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINT_OPTIONS_H_
