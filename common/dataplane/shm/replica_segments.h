// One rank's parameters and gradients in memory that other processes of the host can map, of the
// host or of a device.
#ifndef OPTSHARD_COMMON_DATAPLANE_SHM_REPLICA_SEGMENTS_H_
#define OPTSHARD_COMMON_DATAPLANE_SHM_REPLICA_SEGMENTS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "common/dataplane/peer_replicas.h"
#include "common/ids.h"
#include "common/link/segment.h"
#include "common/link/segment_place.h"
#include "common/link/unique_fd.h"
#include "common/memory_layout.h"

namespace optshard {

// Two segments for each admission of the MemoryLayout, one for parameters and one for gradients.
// Each has the regions of the admission one after the other, every region in pages of its own. The
// first region begins at a place that differs between ranks and segments (common/stagger.h). A rank
// that uses another rank's parameters has segments for gradients only. Segments that are there stay
// where they are when groups are added. Thread-compatible.
class ReplicaSegments {
 public:
  enum class Parts { kParametersAndGradients, kGradients };

  // By admission; `parameters` is empty where there are none.
  struct Descriptors {
    std::vector<UniqueFd> parameters;
    std::vector<UniqueFd> gradients;
  };

  using Place = std::shared_ptr<const SegmentPlace>;
  static const Place& OnHost();  // without a limit

  // Zeros. RESOURCE_EXHAUSTED as SegmentPlace::Create.
  static absl::StatusOr<std::shared_ptr<const ReplicaSegments>> Create(
      const MemoryLayout& layout, Rank rank, Parts parts, const Place& place = OnHost());

  // The segments of `before`, which keep their addresses, and zeros for the later admissions of
  // `layout`, in the same place. Errors as Create.
  static absl::StatusOr<std::shared_ptr<const ReplicaSegments>> Grow(const ReplicaSegments& before,
                                                                     const MemoryLayout& layout,
                                                                     Rank rank);

  // Maps those of another process; the parameters may be none, or those of another rank that shares
  // them. The descriptors are closed: forked children hold nothing. `before`, if any, has the
  // segments of earlier admissions already, which keep their addresses, and is in the same place.
  // INVALID_ARGUMENT as SegmentPlace::Open, or where there is not one descriptor for each other
  // admission.
  static absl::StatusOr<std::shared_ptr<const ReplicaSegments>> Attach(
      const MemoryLayout& layout, Rank rank, Descriptors descriptors,
      absl::optional<Rank> parameters_rank = absl::nullopt, const ReplicaSegments* before = nullptr,
      const Place& place = OnHost());

  // Maps those that an earlier process of this one's kind has created, and keeps the descriptors.
  // Errors as Attach.
  static absl::StatusOr<std::shared_ptr<const ReplicaSegments>> Adopt(
      const MemoryLayout& layout, Rank rank, Descriptors descriptors, const Place& place,
      const ReplicaSegments* before = nullptr);

  // Of all segments together.
  static size_t ParametersBytes(const MemoryLayout& layout);
  static size_t GradientsBytes(const MemoryLayout& layout);

  // By region of the layout; parameters are null where this has none.
  const std::vector<ReplicaRegion>& regions() const { return regions_; }

  bool has_parameters() const { return has_parameters_; }
  // To be sent to another process, by admission.
  std::vector<int> parameters_fds() const;
  std::vector<int> gradients_fds() const;

  // Those of one admission.
  const Segment& parameters(int admission = 0) const { return *pieces_[admission]->parameters; }
  const Segment& gradients(int admission = 0) const { return pieces_[admission]->gradients; }

  // Takes away the descriptors of the admissions that this has, if they are those of these very
  // segments; returns whether they are. Errors as SegmentPlace::IsOf.
  absl::StatusOr<bool> TakeOwn(Descriptors* descriptors) const;

  // Whether the descriptors are those of these very segments, of all admissions from this one on
  // for which there are descriptors, and for at least one. Errors likewise.
  absl::StatusOr<bool> AreOf(const Descriptors& descriptors, int admission = 0) const;

 private:
  // Of one admission.
  struct Piece {
    absl::optional<Segment> parameters;
    Segment gradients;
  };
  using Pieces = std::vector<std::shared_ptr<const Piece>>;

  absl::StatusOr<bool> IsPiece(const Piece& piece, const UniqueFd* parameters,
                               const UniqueFd& gradients) const;
  static absl::StatusOr<std::shared_ptr<const ReplicaSegments>> Map(
      const MemoryLayout& layout, Rank parameters_rank, Rank gradients_rank,
      Descriptors descriptors, const ReplicaSegments* before, const Place& place, bool keep);

  ReplicaSegments(const MemoryLayout& layout, Place place, Pieces pieces, bool has_parameters,
                  Rank parameters_rank, Rank gradients_rank);

  Place place_;
  Pieces pieces_;  // by admission
  bool has_parameters_;
  std::vector<ReplicaRegion> regions_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DATAPLANE_SHM_REPLICA_SEGMENTS_H_
