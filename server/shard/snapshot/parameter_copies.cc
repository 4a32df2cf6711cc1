#include "server/shard/snapshot/parameter_copies.h"

#include <cstring>

#include "common/parameter_space.h"
#include "common/partition.h"
#include "common/state_format.h"

namespace optshard {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterCopies>> ParameterCopies::Allocate(
    std::shared_ptr<const GenerationShape> shape, Rank rank) {
  std::unique_ptr<ParameterCopies> copies(new ParameterCopies(std::move(shape)));
  size_t bytes = 0;
  for (const Slice& slice : copies->shape_->slices(rank)) {
    ShardSnapshot::Part part;
    part.parameter = slice.parameter;
    part.slot = kParameterPart;
    part.format = StateFormatOf(copies->shape_->space().parameter(slice.parameter).dtype);
    part.offset_elements = slice.offset_elements;
    part.elements = slice.elements;
    copies->places_.push_back(bytes);
    bytes += (part.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    copies->parts_.push_back(std::move(part));
  }
  absl::StatusOr<MappedMemory> memory =
      MappedMemory::Allocate(bytes, "the parameters of a snapshot");
  if (!memory.ok()) return memory.status();
  copies->copies_ = *std::move(memory);
  if (bytes > 0) std::memset(copies->copies_.data(), 0, bytes);
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
    std::memcpy(static_cast<char*>(copies_.data()) + places_[i],
                from.From(part.offset_elements).data(), part.bytes());
  }
  return true;
}

}  // namespace optshard
