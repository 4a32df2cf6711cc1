// Runs the update rule over the buckets that a rank owns.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_UPDATER_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_UPDATER_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/shard/engine/step_exchange.h"
#include "server/shard/engine/step_record.h"
#include "server/update/cpu/span_executor.h"
#include "server/update/cpu/worker_threads.h"
#include "server/update/executor.h"

namespace optshard {

// Bound to the step's thread.
class BucketUpdater {
 public:
  explicit BucketUpdater(const StepContext& context);

  // Fills in where a span's gradient and parameter lie; the rest of `update` is filled in already.
  using Place = absl::FunctionRef<void(const BucketSpan& span, SpanUpdate* update)>;

  // Updates the parameters of the store's own_buckets()[own] that the record lists as updated.
  // Errors are the executor's.
  absl::Status Update(int own, const StepRecord& record, Place place, absl::Time deadline);

 private:
  const StepContext context_;
  WorkerThreads threads_;
  SpanExecutor executor_;
  std::vector<UpdateTask> tasks_;  // of the bucket that is being updated
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_UPDATER_H_
