// Runs the update rule over the buckets that a rank owns.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_UPDATER_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_UPDATER_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "server/shard/engine/step_exchange.h"
#include "server/shard/engine/step_record.h"
#include "server/update/update_threads.h"

namespace optshard {

// Bound to the step's thread.
class BucketUpdater {
 public:
  explicit BucketUpdater(const StepContext& context);

  // Fills in where a span's gradient and parameter lie; the rest of `update` is filled in already.
  using Place = absl::FunctionRef<void(const BucketSpan& span, SpanUpdate* update)>;

  // Updates the parameters of the store's own_buckets()[own] that the record lists as updated.
  void Update(int own, const StepRecord& record, Place place);

 private:
  const StepContext context_;
  UpdateThreads threads_;
  std::vector<SpanTask> tasks_;  // of the bucket that is being updated
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_UPDATER_H_
