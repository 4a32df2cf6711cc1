// Publishes buckets of parameters from one rank's replica to those of others, pipelined.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_PUBLISHER_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_PUBLISHER_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/bucket.h"
#include "common/ids.h"
#include "server/shard/engine/operation_window.h"
#include "server/shard/engine/replica_memory.h"
#include "server/shard/engine/step_exchange.h"
#include "server/shard/engine/step_record.h"

namespace optshard {

// Bound to the step's thread.
class BucketPublisher {
 public:
  // Called when a bucket of another rank is in this rank's replica. `updated` lists, by parameter,
  // those that came; null: all.
  using Received = std::function<void(const Bucket& bucket, const std::vector<bool>* updated)>;

  // `window` outlives it. Its staging holds any bucket.
  BucketPublisher(const StepContext& context, OperationWindow* window, Received received = nullptr)
      : context_(context), window_(window), received_(std::move(received)) {}

  // The owner's values after a step go to the other members, in the type that they are published
  // in. Drain the window to wait for them. Bucket, record and replica stay until then. After an
  // error: OperationWindow::Abandon.
  absl::Status PublishStep(const Bucket& bucket, absl::Span<const Rank> members,
                           const StepRecord& record, const ReplicaMemory& replica,
                           absl::Time deadline);
  // Likewise what rank `from` has between steps, as it is.
  absl::Status PublishValues(const Bucket& bucket, Rank from, absl::Span<const Rank> members,
                             StepNumber step, const ReplicaMemory& replica, absl::Time deadline);

 private:
  // What travels.
  struct Publication {
    Rank from = 0;
    absl::Span<const Rank> members;
    StepTag tag;
    DType dtype = DType::kFloat32;
    // By parameter; null: all. Values travel in another type only of those that are listed.
    const std::vector<bool>* updated = nullptr;
  };

  absl::Status Publish(const Bucket& bucket, const Publication& publication,
                       const ReplicaMemory& replica, absl::Time deadline);

  const StepContext context_;
  OperationWindow* const window_;
  const Received received_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_PUBLISHER_H_
