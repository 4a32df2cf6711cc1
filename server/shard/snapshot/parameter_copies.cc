#include "server/shard/snapshot/parameter_copies.h"

#include <cstring>
#include <utility>

#include "common/parameter_space.h"
#include "common/partition.h"
#include "common/state_format.h"

namespace optshard {
namespace {

constexpr int64_t kAlignment = 64;

}  // namespace

ParameterCopies::ParameterCopies(std::shared_ptr<const GenerationShape> shape, Rank rank)
    : shape_(std::move(shape)) {
  for (const Slice& slice : shape_->slices(rank)) {
    ShardSnapshot::Part part;
    part.parameter = slice.parameter;
    part.slot = kParameterPart;
    part.format = StateFormatOf(shape_->space().parameter(slice.parameter).dtype);
    part.offset_elements = slice.offset_elements;
    part.elements = slice.elements;
    places_.push_back(bytes_);
    bytes_ += (part.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    parts_.push_back(std::move(part));
  }
}

int64_t ParameterCopies::BytesFor(const std::shared_ptr<const GenerationShape>& shape, Rank rank) {
  return ParameterCopies(shape, rank).bytes_;
}

absl::StatusOr<std::unique_ptr<ParameterCopies>> ParameterCopies::Allocate(
    std::shared_ptr<const GenerationShape> shape, Rank rank, SnapshotMemory& memory) {
  std::unique_ptr<ParameterCopies> copies(new ParameterCopies(std::move(shape), rank));
  absl::StatusOr<SnapshotMemory::Piece> piece = memory.Take(copies->bytes_);
  if (!piece.ok()) return piece.status();
  copies->copies_ = *std::move(piece);
  return copies;
}

bool ParameterCopies::Copy(const ParameterMemory& memory) {
  const ParameterSpace& space = shape_->space();
  if (memory.values.size() != static_cast<size_t>(space.parameter_count())) return false;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const ShardSnapshot::Part& part = parts_[i];
    const ConstBuffer from = memory.values[part.parameter];
    if (part.elements == 0) continue;
    if (!from || from.dtype() != space.parameter(part.parameter).dtype) return false;
    std::memcpy(copies_.get() + places_[i], from.From(part.offset_elements).data(), part.bytes());
  }
  return true;
}

}  // namespace optshard
