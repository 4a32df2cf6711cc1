// One pass over the replicas themselves, where the plane reaches those of all ranks: each owner
// reads every replica's gradients and writes every replica's parameters. Nothing is sent but votes.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_DIRECT_EXCHANGE_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_DIRECT_EXCHANGE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/shard/engine/bucket_updater.h"
#include "server/shard/engine/reached_replicas.h"
#include "server/shard/engine/step_exchange.h"

namespace optshard {

// The plane has peer_replicas(), and the replica given to a step is this rank's among them.
// Gradients are read where they lie, until the last owner is done: the step ends with a barrier.
class DirectExchange : public StepExchange {
 public:
  DirectExchange(const StepContext& context, std::unique_ptr<BucketUpdater> updater);

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
  void PlaceSpan(const StepRecord& record, const ReplicaMemory& replica, const BucketSpan& span,
                 SpanUpdate* update);
  absl::Status Barrier(const StepTag& tag, absl::Time deadline);

  const StepContext context_;
  const bool publishes_;  // parameters go to the other replicas
  ReachedReplicas replicas_;
  std::vector<int> group_sizes_;
  const std::unique_ptr<BucketUpdater> updater_;
  std::vector<char> gathered_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_DIRECT_EXCHANGE_H_
