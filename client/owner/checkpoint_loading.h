// All ranks go on from a checkpoint, or none.
#ifndef OPTSHARD_CLIENT_OWNER_CHECKPOINT_LOADING_H_
#define OPTSHARD_CLIENT_OWNER_CHECKPOINT_LOADING_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/loaded_checkpoint.h"
#include "client/owner/owner_link.h"
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
  // Whether the tensors are still such as the optimizer was made with.
  std::function<absl::Status()> check_parameters;
  // OwnerLink::FinishLoading with their memory.
  std::function<absl::Status(const OwnerLink::LoadedStep&, absl::Duration timeout)> finish;
};  // what is pointed to outlives the call

struct CheckpointLoad {
  LoadedCheckpoint loaded;
  std::vector<Hyperparameters> hyperparameters;  // by group
  std::string blob;  // this rank's; empty where another number of ranks saved it
};

// A call of all ranks, as ShardedOptimizer::load_checkpoint, with its errors:
//   1. rank 0 chooses, where no name is given
//   2. every rank opens it; all have the same manifest, and it is of this optimizer
//   3. every rank reads its share, checks it and stages it at its owner; where it is damaged and no
//      name is given, rank 0 chooses the next one
//   4. once all have, what is staged takes the place of state and parameters, on all ranks or none,
//      and the job goes on after the checkpoint's step
// Up to 4. an error leaves everything as it was, and in 4. the loss of a rank tears what a step
// may. Beside what its owner stages no rank has more in memory than a window. Bound to the
// trainer's thread.
absl::StatusOr<CheckpointLoad> LoadCheckpoint(const CheckpointLoadOptions& options,
                                              const std::string& directory,
                                              const std::string& name);

// Of this rank alone, before ranks give up what they have: whether it sees a checkpoint that it
// could load, by its manifest. Errors as LoadCheckpoint.
absl::Status CheckLoadable(const CheckpointLoadOptions& options, const std::string& directory,
                           const std::string& name);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_CHECKPOINT_LOADING_H_
