// The replicas in memory that a rank reaches, as updates and sums take them.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_REACHED_REPLICAS_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_REACHED_REPLICAS_H_

#include <cstdint>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/bucket.h"
#include "common/dataplane/peer_replicas.h"
#include "common/dtype.h"
#include "common/ids.h"
#include "server/shard/engine/replica_memory.h"
#include "server/shard/engine/step_exchange.h"
#include "server/shard/engine/touched_rows.h"

namespace optshard {

// Bound to the step's thread.
class ReachedReplicas {
 public:
  // `ranks` are those whose replicas are reached, this one among them, in the order of summation.
  ReachedReplicas(const StepContext& context, const PeerReplicas& replicas,
                  std::vector<Rank> ranks);

  // Whether this rank's tensors lie in the replica that the others reach. INVALID_ARGUMENT naming
  // the first that does not.
  absl::Status Check(const ReplicaMemory& replica) const;

  // Ends the arrays that Gradients has given.
  void BeginStep() { incomplete_.clear(); }

  // The ranks' gradients of a span, in their order, each from element 0 of the region on; null for
  // a rank that has none, of all ranks' `has_gradient` by parameter. Stay where they are until the
  // next step.
  absl::Span<const void* const> Gradients(const std::vector<std::vector<bool>>& has_gradient,
                                          const TouchedRows& rows, const BucketSpan& span);
  DType gradient_dtype(const BucketSpan& span) const {
    return regions_[RegionOf(span)].gradient_dtype;
  }

  // The span's parameters in the other replicas, each from element 0 of the region on.
  absl::Span<void* const> copies(const BucketSpan& span) const {
    return regions_[RegionOf(span)].copies;
  }
  // The span's first element in its region.
  int64_t First(const BucketSpan& span) const;

  // Copies what this rank's replica has of the parameter to the others'.
  void CopyToOthers(const BucketSpan& span) const;
  // Likewise of all that this rank owns.
  void CopyOwnToOthers() const;
  // All of rank `from`'s parameters to this rank's replica.
  void CopyAllFrom(Rank from) const;
  // All of this rank's to the others.
  void CopyAllToOthers() const;

 private:
  struct Region {
    DType gradient_dtype = DType::kFloat32;
    std::vector<const void*> gradients;
    std::vector<void*> copies;  // ranks may share one copy of the parameters, also with this one
  };

  int RegionOf(const BucketSpan& span) const {
    return context_.layout().place(span.parameter).region;
  }
  const void* Own(int region) const { return replicas_[context_.rank][region].parameters.data(); }

  const StepContext context_;
  const std::vector<std::vector<ReplicaRegion>>& replicas_;  // by rank, by region
  const std::vector<Rank> ranks_;
  std::vector<Region> regions_;
  // Of the present step: gradients of which some rank has none. Elements stay where they are.
  std::set<std::vector<const void*>> incomplete_;
  std::vector<const void*> found_;  // kept for its memory
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_REACHED_REPLICAS_H_
