// All ranks go on from a checkpoint, or none.
#ifndef OPTSHARD_CLIENT_OWNER_CHECKPOINT_LOADING_H_
#define OPTSHARD_CLIENT_OWNER_CHECKPOINT_LOADING_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/loaded_checkpoint.h"
#include "client/owner/checkpoint_match.h"
#include "client/owner/rank_exchange.h"
#include "client/owner/state_layout.h"
#include "common/hyperparameters.h"
#include "server/checkpoint/checkpoint_reader.h"

namespace optshard {

struct CheckpointLoadOptions {
  // Of this attempt; its call is kLoad; with the timeout of a step.
  RankExchange* exchange = nullptr;
  const StateLayout* layout = nullptr;
  std::string job;
  std::string optimizer;
  absl::Span<const at::Tensor> parameters;  // the optimizer's, by index
  // Whether the tensors are still such as the optimizer was made with.
  std::function<absl::Status()> check_parameters;
  // Gives rank 0's values of the parameters to all ranks; throws StatusError, on all ranks alike.
  std::function<void()> synchronise;
};  // what is pointed to outlives the call

struct CheckpointLoad {
  LoadedCheckpoint loaded;
  std::vector<Hyperparameters> hyperparameters;  // by group
  std::string blob;  // this rank's; empty where another number of ranks saved it
};

// A call of all ranks, as ShardedOptimizer::load_checkpoint, with its errors:
//   1. rank 0 chooses, where no name is given
//   2. every rank opens it; all have the same manifest, and it is of this optimizer
//   3. every rank reads its share and checks it; where it is damaged and no name is given, rank 0
//      chooses the next one
//   4. state counts as replaced in part; rank 0 reads the parameters, and all get them
//   5. every rank reads its share again and replaces its slots
//   6. the job goes on after the checkpoint's step
// Up to 4. an error leaves everything as it was. No rank has more of the state in memory than a
// window. Bound to the trainer's thread.
absl::StatusOr<CheckpointLoad> LoadCheckpoint(const CheckpointLoadOptions& options,
                                              const std::string& directory,
                                              const std::string& name);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_CHECKPOINT_LOADING_H_
