// Runs the update rule over the buckets that a rank owns.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_UPDATER_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_UPDATER_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ticket.h"
#include "server/shard/engine/bucket_tasks.h"
#include "server/shard/engine/step_exchange.h"
#include "server/shard/engine/step_record.h"
#include "server/shard/engine/trainer_updates.h"
#include "server/shard/state/mapped_memory.h"
#include "server/update/cpu/worker_threads.h"
#include "server/update/executor.h"

namespace optshard {

// Bound to the step's thread.
class BucketUpdater {
 public:
  // RESOURCE_EXHAUSTED: no memory to compute in. INTERNAL: a plan that cuts a parameter whose rule
  // needs it whole. Other errors are the executor's. `where` is what the executor is given with
  // parameters and gradients that are not in memory of the host.
  static absl::StatusOr<std::unique_ptr<BucketUpdater>> Create(const StepContext& context,
                                                               const ExecutionContext& where = {});

  // Runs the updates of the trainer's own, before all calls of Update (TrainerUpdates::Run).
  absl::Status RunTrainerUpdates(const StepRecord& record, SpanPlace place) {
    return trainer_updates_.Run(record, place);
  }

  // Updates the parameters of the store's own_buckets()[own] that the record lists as updated. Own
  // buckets come in their order. Where the rule needs whole parameters, all buckets of a group are
  // updated with the first one, and nothing is left to do for the others. Where the update is the
  // trainer's own, it has run, and the bucket gets what it computed. When it returns OK, the
  // updates are done. Errors are the executor's; the bucket is then marked as being written.
  absl::Status Update(int own, const StepRecord& record, SpanPlace place, absl::Time deadline);

 private:
  BucketUpdater(const StepContext& context, const ExecutionContext& where, BucketTasks tasks,
                MappedMemory workspaces);

  absl::Status RunTasks(const UpdateRule& rule, absl::Time deadline);
  // Of an element-wise rule: those of one bucket. What snapshots keep is copied piece by piece.
  absl::Status RunInPieces(int own, absl::Time deadline);

  const StepContext context_;
  const ExecutionContext where_;
  const BucketTasks tasks_of_;
  WorkerThreads threads_;
  const MappedMemory workspaces_;
  std::unique_ptr<Executor> executor_;
  TrainerUpdates trainer_updates_;
  std::vector<int> writing_;       // of the batch that is being updated
  std::vector<UpdateTask> tasks_;  // likewise
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_UPDATER_H_
