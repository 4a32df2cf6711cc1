// One pass over the replicas themselves, where the plane reaches those of all ranks: each owner
// reads every replica's gradients and writes every replica's parameters. Nothing is sent but votes.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_DIRECT_EXCHANGE_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_DIRECT_EXCHANGE_H_

#include <cstdint>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/shard/engine/bucket_updater.h"
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
  // A region's replicas, as an update takes them.
  struct Region {
    DType gradient_dtype = DType::kFloat32;
    std::vector<const void*> gradients;  // in the order of the reduction tree
    std::vector<void*> copies;           // of the parameters, but for this rank's own
  };

  void PlaceSpan(const StepRecord& record, const ReplicaMemory& replica, const BucketSpan& span,
                 SpanUpdate* update);
  absl::Status Barrier(const StepTag& tag, absl::Time deadline);
  // Gradients by all ranks that have one of the span; null where one has none.
  absl::Span<const void* const> Gradients(const StepRecord& record, const BucketSpan& span,
                                          int region);

  const StepContext context_;
  const std::vector<std::vector<ReplicaRegion>>& replicas_;  // by rank, by region
  std::vector<Rank> tree_order_;
  std::vector<int> group_sizes_;
  std::vector<Region> regions_;
  const std::unique_ptr<BucketUpdater> updater_;
  // Of the present step: gradients of which some rank has none. Elements stay where they are.
  std::set<std::vector<const void*>> incomplete_;
  std::vector<const void*> found_;  // kept for its memory
  std::vector<char> gathered_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_DIRECT_EXCHANGE_H_
