// Runs the updates that are code of the trainer's own, over what a rank owns.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_TRAINER_UPDATES_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_TRAINER_UPDATES_H_

#include <vector>

#include "absl/status/status.h"
#include "server/shard/engine/bucket_tasks.h"
#include "server/shard/engine/step_exchange.h"
#include "server/shard/engine/step_record.h"
#include "server/update/cpu/worker_threads.h"
#include "server/update/trainer_update.h"

namespace optshard {

// Bound to the step's thread.
class TrainerUpdates {
 public:
  // `threads` outlives it.
  TrainerUpdates(const StepContext& context, WorkerThreads* threads)
      : context_(context), threads_(threads), groups_(context.groups->size()) {}

  // Takes parameters and averaged gradients of what is updated to where the updates compute, and
  // runs them, group by group, until one fails. No replica changes. The error names the group.
  absl::Status Run(const StepRecord& record, SpanPlace place);

  // Writes what Run has computed for a bucket to all replicas that `place` gives.
  absl::Status Store(const ShardStore::OwnBucket& own, const StepRecord& record, SpanPlace place);

 private:
  struct Group {
    bool owns = false;  // a parameter of the group
    std::vector<int> updated;
  };
  struct Load {
    TrainerUpdate::Arrays to;  // from the span's first element on
    SpanUpdate from;
  };

  bool Runs(int group) const { return (*context_.groups)[group].trainer_update != nullptr; }
  absl::Status Add(const ShardStore::OwnBucket& own, const StepRecord& record, SpanPlace place);

  const StepContext context_;
  WorkerThreads* const threads_;
  // Of the step that is being run. Kept for their memory.
  std::vector<Group> groups_;
  std::vector<Load> loads_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_TRAINER_UPDATES_H_
