// One rank's parameters and gradients in memory that other processes of the host can map.
#ifndef OPTSHARD_COMMON_DATAPLANE_SHM_REPLICA_SEGMENTS_H_
#define OPTSHARD_COMMON_DATAPLANE_SHM_REPLICA_SEGMENTS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "common/dataplane/peer_replicas.h"
#include "common/ids.h"
#include "common/link/memory_budget.h"
#include "common/link/segment.h"
#include "common/link/unique_fd.h"
#include "common/memory_layout.h"

namespace optshard {

// Two segments, one for parameters and one for gradients. Each has the regions of the MemoryLayout
// one after the other, every region in pages of its own. The first region begins at a place that
// differs between ranks and segments (common/stagger.h). A rank that uses another rank's parameters
// has a segment for gradients only. Thread-compatible.
class ReplicaSegments {
 public:
  enum class Parts { kParametersAndGradients, kGradients };

  // Zeros. RESOURCE_EXHAUSTED as Segment::Create.
  static absl::StatusOr<std::shared_ptr<const ReplicaSegments>> Create(
      const MemoryLayout& layout, Rank rank, Parts parts,
      MemoryBudget& budget = MemoryBudget::Unlimited());

  // Maps those of another process; `parameters` may be none, or those of another rank that shares
  // them. The descriptors are closed: forked children hold nothing. INVALID_ARGUMENT as
  // Segment::Attach.
  static absl::StatusOr<std::shared_ptr<const ReplicaSegments>> Attach(
      const MemoryLayout& layout, Rank rank, UniqueFd parameters, UniqueFd gradients,
      absl::optional<Rank> parameters_rank = absl::nullopt);

  // Maps those that an earlier process of this one's kind has created, and keeps the descriptors.
  // `parameters` may be none. INVALID_ARGUMENT as Segment::Attach.
  static absl::StatusOr<std::shared_ptr<const ReplicaSegments>> Adopt(const MemoryLayout& layout,
                                                                      Rank rank,
                                                                      UniqueFd parameters,
                                                                      UniqueFd gradients,
                                                                      MemoryBudget& budget);

  // Of the segments.
  static size_t ParametersBytes(const MemoryLayout& layout);
  static size_t GradientsBytes(const MemoryLayout& layout);

  // By region of the layout; parameters are null where this has none.
  const std::vector<ReplicaRegion>& regions() const { return regions_; }

  bool has_parameters() const { return parameters_.has_value(); }
  const Segment& parameters() const { return *parameters_; }
  const Segment& gradients() const { return gradients_; }

  // Whether the descriptors are those of these very segments.
  bool AreOf(int parameters, int gradients) const {
    return has_parameters() && parameters_->IsOf(parameters) && gradients_.IsOf(gradients);
  }

 private:
  ReplicaSegments() = default;
  void PlaceRegions(const MemoryLayout& layout, Rank parameters_rank, Rank gradients_rank);

  absl::optional<Segment> parameters_;
  Segment gradients_;
  std::vector<ReplicaRegion> regions_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_SHM_REPLICA_SEGMENTS_H_
