#include "common/dataplane/shm/replica_segments.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/stagger.h"

namespace optshard {
namespace {

constexpr size_t kPageBytes = 4096;

size_t InPages(int64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

std::string ParametersOf(Rank rank) { return absl::StrCat("the parameters of rank ", rank); }
std::string GradientsOf(Rank rank) { return absl::StrCat("the gradients of rank ", rank); }

}  // namespace

size_t ReplicaSegments::ParametersBytes(const MemoryLayout& layout) {
  size_t bytes = kPageBytes;  // to begin anywhere in the first one
  for (const MemoryLayout::Region& region : layout.regions()) bytes += InPages(region.bytes());
  return bytes;
}

size_t ReplicaSegments::GradientsBytes(const MemoryLayout& layout) {
  size_t bytes = kPageBytes;
  for (const MemoryLayout::Region& region : layout.regions()) {
    bytes += InPages(region.gradient_bytes());
  }
  return bytes;
}

absl::StatusOr<std::shared_ptr<const ReplicaSegments>> ReplicaSegments::Create(
    const MemoryLayout& layout, Rank rank, Parts parts, MemoryBudget& budget) {
  std::shared_ptr<ReplicaSegments> segments(new ReplicaSegments());
  if (parts == Parts::kParametersAndGradients) {
    absl::StatusOr<Segment> parameters =
        Segment::Create(LabelOf(SegmentKind::kParameters, rank, layout.Digest()),
                        ParametersBytes(layout), ParametersOf(rank), budget);
    if (!parameters.ok()) return parameters.status();
    segments->parameters_ = *std::move(parameters);
  }
  absl::StatusOr<Segment> gradients =
      Segment::Create(LabelOf(SegmentKind::kGradients, rank, layout.Digest()),
                      GradientsBytes(layout), GradientsOf(rank), budget);
  if (!gradients.ok()) return gradients.status();
  segments->gradients_ = *std::move(gradients);
  segments->PlaceRegions(layout, rank, rank);
  return std::shared_ptr<const ReplicaSegments>(std::move(segments));
}

absl::StatusOr<std::shared_ptr<const ReplicaSegments>> ReplicaSegments::Attach(
    const MemoryLayout& layout, Rank rank, UniqueFd parameters, UniqueFd gradients,
    absl::optional<Rank> parameters_rank) {
  std::shared_ptr<ReplicaSegments> segments(new ReplicaSegments());
  if (parameters.valid()) {
    const Rank of = parameters_rank.value_or(rank);
    absl::StatusOr<Segment> attached = Segment::Attach(
        std::move(parameters), LabelOf(SegmentKind::kParameters, of, layout.Digest()),
        ParametersBytes(layout), ParametersOf(of));
    if (!attached.ok()) return attached.status();
    attached->CloseDescriptor();
    segments->parameters_ = *std::move(attached);
  }
  absl::StatusOr<Segment> attached =
      Segment::Attach(std::move(gradients), LabelOf(SegmentKind::kGradients, rank, layout.Digest()),
                      GradientsBytes(layout), GradientsOf(rank));
  if (!attached.ok()) return attached.status();
  attached->CloseDescriptor();
  segments->gradients_ = *std::move(attached);
  segments->PlaceRegions(layout, parameters_rank.value_or(rank), rank);
  return std::shared_ptr<const ReplicaSegments>(std::move(segments));
}

absl::StatusOr<std::shared_ptr<const ReplicaSegments>> ReplicaSegments::Adopt(
    const MemoryLayout& layout, Rank rank, UniqueFd parameters, UniqueFd gradients,
    MemoryBudget& budget) {
  std::shared_ptr<ReplicaSegments> segments(new ReplicaSegments());
  if (parameters.valid()) {
    absl::StatusOr<Segment> adopted = Segment::Adopt(
        std::move(parameters), LabelOf(SegmentKind::kParameters, rank, layout.Digest()),
        ParametersBytes(layout), ParametersOf(rank), budget);
    if (!adopted.ok()) return adopted.status();
    segments->parameters_ = *std::move(adopted);
  }
  absl::StatusOr<Segment> adopted =
      Segment::Adopt(std::move(gradients), LabelOf(SegmentKind::kGradients, rank, layout.Digest()),
                     GradientsBytes(layout), GradientsOf(rank), budget);
  if (!adopted.ok()) return adopted.status();
  segments->gradients_ = *std::move(adopted);
  segments->PlaceRegions(layout, rank, rank);
  return std::shared_ptr<const ReplicaSegments>(std::move(segments));
}

// Of shared parameters, all ranks keep to the place of the one whose they are.
void ReplicaSegments::PlaceRegions(const MemoryLayout& layout, Rank parameters_rank,
                                   Rank gradients_rank) {
  const auto at = [](const Segment& segment, size_t offset, DType dtype) {
    return Buffer(static_cast<char*>(segment.data()) + offset, dtype);
  };
  size_t offset = 0;
  size_t gradients_offset = 0;
  for (const MemoryLayout::Region& region : layout.regions()) {
    // Of a region without elements, too, the type is known.
    ReplicaRegion placed = {Buffer(nullptr, region.dtype), Buffer(nullptr, region.gradient_dtype)};
    if (region.elements > 0) {
      if (has_parameters()) {
        placed.parameters =
            at(*parameters_, offset + StaggerBytes(2 * static_cast<size_t>(parameters_rank)),
               region.dtype);
      }
      placed.gradients = at(
          gradients_, gradients_offset + StaggerBytes(2 * static_cast<size_t>(gradients_rank) + 1),
          region.gradient_dtype);
    }
    regions_.push_back(placed);
    offset += InPages(region.bytes());
    gradients_offset += InPages(region.gradient_bytes());
  }
}

}  // namespace optshard
