// Gradients and parameters as messages of the data plane: reduced to the owners and published from
// them, bucket by bucket, pipelined.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_MESSAGE_EXCHANGE_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_MESSAGE_EXCHANGE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/shard/engine/bucket_pipeline.h"
#include "server/shard/engine/bucket_updater.h"
#include "server/shard/engine/step_exchange.h"

namespace optshard {

// Works on every plane, and with replicas that lie anywhere.
class MessageExchange : public StepExchange {
 public:
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<StepExchange>> Create(
      const StepContext& context, std::unique_ptr<BucketUpdater> updater);

  absl::Status Check(const ReplicaMemory& replica) const override;
  absl::Status Prepare(const StepRecord& record, const ReplicaMemory& replica,
                       absl::Time deadline) override;
  absl::Status RunTrainerUpdates(const StepRecord& record, const ReplicaMemory& replica) override;
  absl::Status Apply(const StepRecord& record, const ReplicaMemory& replica,
                     absl::Time deadline) override;
  absl::Status Complete(const StepRecord& record, absl::Time deadline) override;
  absl::Status SyncParameters(StepNumber step, const ReplicaMemory& replica,
                              absl::Time deadline) override;
  absl::Status PublishParameters(StepNumber step, const ReplicaMemory& replica,
                                 absl::Time deadline) override;
  void Abandon(absl::Time deadline) override;

 private:
  MessageExchange(const StepContext& context, std::unique_ptr<BucketUpdater> updater,
                  std::unique_ptr<BucketPipeline> pipeline);

  void PlaceSpan(const ReplicaMemory& replica, const ShardStore::OwnBucket& own,
                 const BucketSpan& span, SpanUpdate* update) const;

  const bool reduces_;  // gradients go to their owners
  const std::unique_ptr<BucketUpdater> updater_;
  const std::unique_ptr<BucketPipeline> pipeline_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_MESSAGE_EXCHANGE_H_
