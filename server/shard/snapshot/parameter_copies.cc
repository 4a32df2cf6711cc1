#include "server/shard/snapshot/parameter_copies.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/bucket.h"
#include "common/buffer.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/parameter_space.h"
#include "common/partition.h"
#include "common/state_format.h"

namespace optshard {
namespace {

constexpr int64_t kAlignment = 64;

}  // namespace

ParameterCopies::ParameterCopies(std::shared_ptr<const GenerationShape> shape, Rank rank)
    : shape_(std::move(shape)), rank_(rank) {
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

bool ParameterCopies::AreIn(const ParameterMemory& memory) const {
  const ParameterSpace& space = shape_->space();
  if (memory.values.size() != static_cast<size_t>(space.parameter_count())) return false;
  return std::all_of(parts_.begin(), parts_.end(), [&](const ShardSnapshot::Part& part) {
    if (part.elements == 0) return true;
    const ConstBuffer values = memory.values[part.parameter];
    return values && values.dtype() == space.parameter(part.parameter).dtype;
  });
}

bool ParameterCopies::CopyNow(const ParameterMemory& memory) {
  may_be_written_ = false;
  if (!AreIn(memory)) return false;
  const uint64_t writes = memory.writes == nullptr ? 0 : memory.writes->count();
  for (size_t i = 0; i < parts_.size(); ++i) {
    const ShardSnapshot::Part& part = parts_[i];
    if (part.elements == 0) continue;
    std::memcpy(copies_.get() + places_[i],
                memory.values[part.parameter].From(part.offset_elements).data(), part.bytes());
  }
  return memory.writes == nullptr || memory.writes->count() == writes;
}

absl::Status ParameterCopies::BeginDeviceCopy(const std::shared_ptr<const ParameterMemory>& memory,
                                              DeviceAccess& device, uint64_t version) {
  if (!AreIn(*memory)) return absl::AbortedError("the trainer gives other parameters");
  const uint64_t writes = memory->writes == nullptr ? 0 : memory->writes->count();
  may_be_written_ = memory->writes != nullptr && memory->writes->calls() > 0;  // by another process
  memory_ = memory;
  writes_ = writes;
  std::vector<DeviceAccess::Range> ranges;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const ShardSnapshot::Part& part = parts_[i];
    if (part.elements == 0) continue;
    ranges.push_back({memory->values[part.parameter].From(part.offset_elements).data(),
                      static_cast<size_t>(places_[i]), static_cast<size_t>(part.bytes())});
  }
  absl::StatusOr<std::shared_ptr<const DeviceCopy>> copy =
      device.BeginCopy(version, ranges, copies_, memory->stream);
  if (!copy.ok()) return copy.status();
  device_copy_ = *std::move(copy);
  // A trainer that leaves makes writes expected first, and then waits for what is copied.
  if (may_be_written_ && memory->writes->are_expected()) {
    may_be_written_ = false;
    if (!AreThere()) return absl::AbortedError("the parameters' copy is lost");
  }
  // What its thread has put on its stream meanwhile may be before the copy or behind it.
  const bool is_same = memory->writes == nullptr || memory->writes->count() == writes;
  return is_same ? absl::OkStatus() : absl::AbortedError("the trainer writes to its parameters");
}

bool ParameterCopies::BeginCopying(const std::shared_ptr<const ParameterMemory>& memory,
                                   const ShardStore& store) {
  if (!AreIn(*memory)) return false;
  if (memory != memory_) later_ = SnapshotOf(*memory, store);
  memory_ = memory;
  writes_ = memory->writes->count();
  store.snapshots().Open(later_);
  // A trainer that leaves makes writes expected first, and then has what is open copied.
  may_be_written_ = !memory->writes->are_expected();
  if (!may_be_written_) StopCopying(store);
  return may_be_written_;
}

std::shared_ptr<StateSnapshot> ParameterCopies::SnapshotOf(const ParameterMemory& memory,
                                                           const ShardStore& store) const {
  std::map<std::pair<int32_t, int64_t>, size_t> part_at;  // by parameter and first element
  for (size_t i = 0; i < parts_.size(); ++i) {
    part_at[{parts_[i].parameter, parts_[i].offset_elements}] = i;
  }
  std::vector<MemoryBlock> blocks;
  CopyPlaces places;
  for (const ShardStore::OwnBucket& own : store.own_buckets()) {
    blocks.emplace_back();
    places.emplace_back();
    for (const BucketSpan& span : own.bucket->spans) {
      const int64_t first = span.parameter_offset_elements;
      const size_t part = std::prev(part_at.upper_bound({span.parameter, first}))->second;
      const ConstBuffer from = memory.values[span.parameter].From(first);
      const auto element = static_cast<int64_t>(SizeOf(from.dtype()));
      blocks.back().push_back(
          {static_cast<const char*>(from.data()), static_cast<size_t>(span.elements * element)});
      places.back().push_back(
          static_cast<size_t>(places_[part] + (first - parts_[part].offset_elements) * element));
    }
  }
  return store.snapshots().PrepareParameters(std::move(blocks), std::move(places), copies_);
}

absl::Status ParameterCopies::Keep() {
  // Of a copy that is lost, whoever reads it is told.
  if (!may_be_written_ || !AreThere()) return absl::OkStatus();
  if (later_ != nullptr && !later_->CopyAll()) {
    return absl::AbortedError(absl::StrFormat(
        "rank %d has got param groups, or has left, while a snapshot copied its parameters",
        rank_));
  }
  Settle();
  if (is_settled_) return absl::OkStatus();
  const uint64_t calls = memory_->writes->calls();
  const absl::StatusOr<uint64_t> writes = memory_->writes->CountNow();
  if (!writes.ok()) {
    return errors::WithContext(writes.status(),
                               "nobody knows of which moment the copy of the parameters is");
  }
  if (*writes == writes_) {
    if (!kept_after_.has_value()) kept_after_ = calls;
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "the trainer of rank %d has changed the values of its parameters between two of its calls "
      "(or was killed, and may have) while a snapshot copied them: nobody knows of which moment "
      "the copy is. Save again: who goes on writing has them copied when a snapshot is opened, as "
      "copy_parameters_at_once has it from the beginning",
      rank_));
}

void ParameterCopies::Settle() {
  if (is_settled_ || !kept_after_.has_value()) return;
  // In this order: the count is at least as late as the call.
  const bool has_called = memory_->writes->calls() > *kept_after_;
  is_settled_ = has_called && memory_->writes->count() == writes_;
}

void ParameterCopies::StopCopying(const ShardStore& store) {
  if (later_ != nullptr) store.snapshots().Close(later_.get());
}

}  // namespace optshard
