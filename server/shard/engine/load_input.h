// What a trainer asks its shard owner for at the end of the loading of a checkpoint.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_LOAD_INPUT_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_LOAD_INPUT_H_

#include <functional>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/dataplane/peer_replicas.h"
#include "common/hyperparameters.h"
#include "common/ids.h"
#include "server/shard/engine/step_input.h"

namespace optshard {

// Thread-compatible. The spans outlive the call.
struct LoadInput {
  StepNumber step = 0;                                // after which the job goes on
  absl::Span<const Hyperparameters> hyperparameters;  // by group, which it was made with
  absl::Span<const ReplicaTensor> replica;            // as in StepInput; no gradients are needed
  absl::Span<const ReplicaRegion> regions;
  // Called once all ranks have voted for it and this rank's state counts as torn: for what is kept
  // beside the state. Null: nothing is.
  std::function<void()> begun;
  absl::Duration timeout;
  void* stream = nullptr;  // as in StepInput
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_LOAD_INPUT_H_
