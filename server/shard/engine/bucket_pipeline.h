// The buckets of a step on their way between the ranks: gradients to the owners, values from them.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_PIPELINE_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_PIPELINE_H_

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/bucket.h"
#include "common/buffer.h"
#include "common/dataplane/reduction.h"
#include "common/dtype.h"
#include "server/shard/engine/bucket_publisher.h"
#include "server/shard/engine/message_buffers.h"
#include "server/shard/engine/operation_window.h"
#include "server/shard/engine/replica_memory.h"
#include "server/shard/engine/step_exchange.h"
#include "server/shard/engine/step_record.h"

namespace optshard {

// Several buckets are under way at a time. What takes a replica writes to it, or reads it, until it
// returns. After an error: Abandon. Bound to the step's thread.
class BucketPipeline {
 public:
  // Between whom: by owner, those who bring something to the gradients of the owner's buckets. The
  // same ranks get the owner's values.
  using Reductions = std::vector<Reduction>;

  // What this rank brings to a bucket's average, laid out as the bucket; null: it is not asked.
  // `staging`: from TakeStaging, where it lies there.
  struct Contribution {
    const void* data = nullptr;
    void* staging = nullptr;
  };
  // `average`: where this rank's result goes, which may be written before; no array elsewhere.
  using Contribute =
      absl::FunctionRef<absl::StatusOr<Contribution>(const Bucket& bucket, Buffer average)>;

  // RESOURCE_EXHAUSTED: no memory for staging.
  static absl::StatusOr<std::unique_ptr<BucketPipeline>> Create(
      const StepContext& context, Reductions reductions, TravelsAs travels_as,
      BucketPublisher::Received received = nullptr);

  // Whether this rank is asked for gradients of the owner's buckets.
  bool IsAsked(Rank owner) const { return reductions_[owner].Has(context_.rank); }
  // For a contribution; holds any bucket.
  absl::StatusOr<void*> TakeStaging(absl::Time deadline) { return window_->TakeStaging(deadline); }

  // Averages the gradients of all buckets at their owners.
  absl::Status Reduce(const StepRecord& record, Contribute contribute, absl::Time deadline);

  // Updates own buckets and publishes all in their order, so that values travel while others are
  // computed.
  absl::Status Apply(const StepRecord& record, const ReplicaMemory& replica,
                     absl::FunctionRef<absl::Status(int own)> update, absl::Time deadline);

  // Between steps: all have rank 0's values, or those of the owners.
  absl::Status PublishFromFirst(StepNumber step, const ReplicaMemory& replica, absl::Time deadline);
  absl::Status PublishFromOwners(StepNumber step, const ReplicaMemory& replica,
                                 absl::Time deadline);

  // On a plane that has been aborted: afterwards no memory is in use.
  void Abandon(absl::Time deadline) { window_->Abandon(deadline); }

 private:
  BucketPipeline(const StepContext& context, Reductions reductions, TravelsAs travels_as,
                 std::unique_ptr<OperationWindow> window, BucketPublisher::Received received);

  const StepContext context_;
  const bool publishes_;  // parameters come from their owners
  const Reductions reductions_;
  const TravelsAs travels_as_;
  const std::unique_ptr<OperationWindow> window_;
  BucketPublisher publisher_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_PIPELINE_H_
