// In one pass over memory within each node, by messages between nodes: a job on several hosts.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_HIERARCHICAL_EXCHANGE_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_HIERARCHICAL_EXCHANGE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/shard/engine/bucket_pipeline.h"
#include "server/shard/engine/bucket_updater.h"
#include "server/shard/engine/reached_replicas.h"
#include "server/shard/engine/step_exchange.h"

namespace optshard {

// The plane has node(), whose plane reaches the replicas of the node's ranks; the replica given to
// a step is this rank's among them. The node is a node group of the plan's tree.
//
// For each bucket every node has one rank that stands for it: the owner in its own node, elsewhere
// the rank that has the owner's place among its node's ranks, counted again from the first where
// there are fewer. It sums the gradients of its node's replicas, and the owner gets the average of
// the sums. The new values go to those that stand for the other nodes, each of which copies them to
// its node's replicas; the owner's update writes all replicas of its own. So a byte crosses to
// another node once, whatever the number of its ranks.
class HierarchicalExchange : public StepExchange {
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
  HierarchicalExchange(const StepContext& context, std::unique_ptr<BucketUpdater> updater);

  // The ranks of this node learn of which parameters each of them has a gradient. Then all of these
  // can be read.
  absl::Status GatherPresence(StepNumber step, const ReplicaMemory& replica, absl::Time deadline);
  // The sum of the node's gradients, in their arithmetic, laid out as the bucket.
  void SumNode(const Bucket& bucket, const TouchedRows& rows, void* to);
  absl::Status GatherInNode(const StepTag& tag, const std::vector<char>& own,
                            std::vector<char>* gathered, absl::Time deadline);
  void PlaceSpan(const ReplicaMemory& replica, const ShardStore::OwnBucket& own,
                 const BucketSpan& span, SpanUpdate* update);
  void CopyInNode(const Bucket& bucket, const std::vector<bool>* updated) const;

  const StepContext context_;
  const NodeRanks& node_;
  const bool reduces_;    // gradients go to their owners
  const bool publishes_;  // parameters come from their owners
  ReachedReplicas replicas_;
  const std::unique_ptr<BucketUpdater> updater_;
  // Between those that stand for the nodes.
  std::unique_ptr<BucketPipeline> pipeline_;
  // By rank, by parameter: of the present step, of this node's ranks.
  std::vector<std::vector<bool>> has_gradient_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_HIERARCHICAL_EXCHANGE_H_
