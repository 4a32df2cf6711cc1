#include "common/dataplane/shm/replica_segments.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/stagger.h"

namespace optshard {
namespace {

constexpr size_t kPageBytes = 4096;

size_t InPages(int64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

std::string ParametersOf(Rank rank) { return absl::StrCat("the parameters of rank ", rank); }
std::string GradientsOf(Rank rank) { return absl::StrCat("the gradients of rank ", rank); }

// Of one admission's segments.
struct Bytes {
  size_t parameters = kPageBytes;  // to begin anywhere in the first one
  size_t gradients = kPageBytes;
};

Bytes BytesOf(const MemoryLayout& layout, int admission) {
  Bytes bytes;
  for (const MemoryLayout::Region& region : layout.regions()) {
    if (region.admission != admission) continue;
    bytes.parameters += InPages(region.bytes());
    bytes.gradients += InPages(region.gradient_bytes());
  }
  return bytes;
}

// One for each admission but the first few, or none of the parameters.
absl::Status CheckCount(const MemoryLayout& layout, Rank rank, size_t there,
                        const ReplicaSegments::Descriptors& descriptors) {
  const auto admissions = static_cast<size_t>(layout.admission_count()) - there;
  if (descriptors.gradients.size() == admissions &&
      (descriptors.parameters.empty() || descriptors.parameters.size() == admissions)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s come in %d segments and %s in %d, expected %d each: one for each admission",
      ParametersOf(rank), descriptors.parameters.size(), GradientsOf(rank),
      descriptors.gradients.size(), admissions));
}

}  // namespace

size_t ReplicaSegments::ParametersBytes(const MemoryLayout& layout) {
  size_t bytes = 0;
  for (int i = 0; i < layout.admission_count(); ++i) bytes += BytesOf(layout, i).parameters;
  return bytes;
}

size_t ReplicaSegments::GradientsBytes(const MemoryLayout& layout) {
  size_t bytes = 0;
  for (int i = 0; i < layout.admission_count(); ++i) bytes += BytesOf(layout, i).gradients;
  return bytes;
}

const ReplicaSegments::Place& ReplicaSegments::OnHost() {
  static const auto* const place = new Place(std::make_shared<HostSegments>());
  return *place;
}

absl::StatusOr<std::shared_ptr<const ReplicaSegments>> ReplicaSegments::Create(
    const MemoryLayout& layout, Rank rank, Parts parts, const Place& place) {
  const ReplicaSegments none(MemoryLayout(), place, {}, parts == Parts::kParametersAndGradients,
                             rank, rank);
  return Grow(none, layout, rank);
}

absl::StatusOr<std::shared_ptr<const ReplicaSegments>> ReplicaSegments::Grow(
    const ReplicaSegments& before, const MemoryLayout& layout, Rank rank) {
  Pieces pieces = before.pieces_;
  while (static_cast<int>(pieces.size()) < layout.admission_count()) {
    const auto admission = static_cast<int>(pieces.size());
    const Bytes bytes = BytesOf(layout, admission);
    const uint64_t digest = layout.Digest(admission);
    auto piece = std::make_shared<Piece>();
    if (before.has_parameters()) {
      absl::StatusOr<Segment> parameters = before.place_->Create(
          LabelOf(SegmentKind::kParameters, rank, digest), bytes.parameters, ParametersOf(rank));
      if (!parameters.ok()) return parameters.status();
      piece->parameters = *std::move(parameters);
    }
    absl::StatusOr<Segment> gradients = before.place_->Create(
        LabelOf(SegmentKind::kGradients, rank, digest), bytes.gradients, GradientsOf(rank));
    if (!gradients.ok()) return gradients.status();
    piece->gradients = *std::move(gradients);
    pieces.push_back(std::move(piece));
  }
  return std::shared_ptr<const ReplicaSegments>(new ReplicaSegments(
      layout, before.place_, std::move(pieces), before.has_parameters(), rank, rank));
}

absl::StatusOr<std::shared_ptr<const ReplicaSegments>> ReplicaSegments::Attach(
    const MemoryLayout& layout, Rank rank, Descriptors descriptors,
    absl::optional<Rank> parameters_rank, const ReplicaSegments* before, const Place& place) {
  return Map(layout, parameters_rank.value_or(rank), rank, std::move(descriptors), before, place,
             false);
}

absl::StatusOr<std::shared_ptr<const ReplicaSegments>> ReplicaSegments::Adopt(
    const MemoryLayout& layout, Rank rank, Descriptors descriptors, const Place& place,
    const ReplicaSegments* before) {
  return Map(layout, rank, rank, std::move(descriptors), before, place, true);
}

absl::StatusOr<std::shared_ptr<const ReplicaSegments>> ReplicaSegments::Map(
    const MemoryLayout& layout, Rank parameters_rank, Rank gradients_rank, Descriptors descriptors,
    const ReplicaSegments* before, const Place& place, bool keep) {
  Pieces pieces;
  if (before != nullptr) pieces = before->pieces_;
  const size_t there = pieces.size();
  absl::Status complete = CheckCount(layout, gradients_rank, there, descriptors);
  if (!complete.ok()) return complete;
  const bool has_parameters = !descriptors.parameters.empty();
  if (before != nullptr && before->has_parameters() != has_parameters) {
    return absl::InvalidArgumentError(
        absl::StrCat("some segments of ", ParametersOf(parameters_rank), " are missing"));
  }
  for (size_t i = there; i < static_cast<size_t>(layout.admission_count()); ++i) {
    const auto admission = static_cast<int>(i);
    const Bytes bytes = BytesOf(layout, admission);
    const uint64_t digest = layout.Digest(admission);
    auto piece = std::make_shared<Piece>();
    if (has_parameters) {
      absl::StatusOr<Segment> parameters =
          place->Open(std::move(descriptors.parameters[i - there]),
                      LabelOf(SegmentKind::kParameters, parameters_rank, digest), bytes.parameters,
                      ParametersOf(parameters_rank));
      if (!parameters.ok()) return parameters.status();
      if (!keep) parameters->CloseDescriptor();
      piece->parameters = *std::move(parameters);
    }
    absl::StatusOr<Segment> gradients =
        place->Open(std::move(descriptors.gradients[i - there]),
                    LabelOf(SegmentKind::kGradients, gradients_rank, digest), bytes.gradients,
                    GradientsOf(gradients_rank));
    if (!gradients.ok()) return gradients.status();
    if (!keep) gradients->CloseDescriptor();
    piece->gradients = *std::move(gradients);
    pieces.push_back(std::move(piece));
  }
  return std::shared_ptr<const ReplicaSegments>(new ReplicaSegments(
      layout, place, std::move(pieces), has_parameters, parameters_rank, gradients_rank));
}

std::vector<int> ReplicaSegments::parameters_fds() const {
  std::vector<int> fds;
  for (const auto& piece : pieces_) {
    if (has_parameters_) fds.push_back(piece->parameters->fd());
  }
  return fds;
}

std::vector<int> ReplicaSegments::gradients_fds() const {
  std::vector<int> fds;
  for (const auto& piece : pieces_) fds.push_back(piece->gradients.fd());
  return fds;
}

absl::StatusOr<bool> ReplicaSegments::IsPiece(const Piece& piece, const UniqueFd* parameters,
                                              const UniqueFd& gradients) const {
  absl::StatusOr<bool> same = place_->IsOf(piece.gradients, gradients.get());
  if (!same.ok() || !*same || parameters == nullptr) return same;
  return place_->IsOf(*piece.parameters, parameters->get());
}

absl::StatusOr<bool> ReplicaSegments::TakeOwn(Descriptors* descriptors) const {
  std::vector<UniqueFd>& parameters = descriptors->parameters;
  std::vector<UniqueFd>& gradients = descriptors->gradients;
  const size_t count = pieces_.size();
  if (has_parameters_ != !parameters.empty() || gradients.size() < count ||
      (has_parameters_ && parameters.size() != gradients.size())) {
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    absl::StatusOr<bool> own =
        IsPiece(*pieces_[i], has_parameters_ ? &parameters[i] : nullptr, gradients[i]);
    if (!own.ok() || !*own) return own;
  }
  const auto end = static_cast<std::ptrdiff_t>(count);
  gradients.erase(gradients.begin(), gradients.begin() + end);
  if (has_parameters_) parameters.erase(parameters.begin(), parameters.begin() + end);
  return true;
}

absl::StatusOr<bool> ReplicaSegments::AreOf(const Descriptors& descriptors, int admission) const {
  const size_t count = descriptors.gradients.size();
  const auto first = static_cast<size_t>(admission);
  if (!has_parameters_ || count == 0 || descriptors.parameters.size() != count ||
      first + count > pieces_.size()) {
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    absl::StatusOr<bool> same =
        IsPiece(*pieces_[first + i], &descriptors.parameters[i], descriptors.gradients[i]);
    if (!same.ok() || !*same) return same;
  }
  return true;
}

// Of shared parameters, all ranks keep to the place of the one whose they are.
ReplicaSegments::ReplicaSegments(const MemoryLayout& layout, Place place, Pieces pieces,
                                 bool has_parameters, Rank parameters_rank, Rank gradients_rank)
    : place_(std::move(place)), pieces_(std::move(pieces)), has_parameters_(has_parameters) {
  const auto at = [](const Segment& segment, size_t offset, DType dtype) {
    return Buffer(static_cast<char*>(segment.data()) + offset, dtype);
  };
  size_t offset = 0;
  size_t gradients_offset = 0;
  int admission = 0;
  for (const MemoryLayout::Region& region : layout.regions()) {
    if (region.admission != admission) offset = gradients_offset = 0;
    admission = region.admission;
    const Piece& piece = *pieces_[admission];
    // Of a region without elements, too, the type is known.
    ReplicaRegion placed = {Buffer(nullptr, region.dtype), Buffer(nullptr, region.gradient_dtype)};
    if (region.elements > 0) {
      if (has_parameters) {
        placed.parameters =
            at(*piece.parameters, offset + StaggerBytes(2 * static_cast<size_t>(parameters_rank)),
               region.dtype);
      }
      placed.gradients =
          at(piece.gradients,
             gradients_offset + StaggerBytes(2 * static_cast<size_t>(gradients_rank) + 1),
             region.gradient_dtype);
    }
    regions_.push_back(placed);
    offset += InPages(region.bytes());
    gradients_offset += InPages(region.gradient_bytes());
  }
}

}  // namespace optshard
