#include "server/shard/snapshot/store_snapshot.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/optimizer_spec.h"
#include "server/shard/snapshot/parameter_copies.h"
#include "server/shard/snapshot/state_snapshots.h"
#include "server/shard/state/parameter_slots.h"
#include "server/shard/state/slot_memory.h"

namespace optshard {
namespace {

constexpr absl::Duration kPause = absl::Microseconds(50);
constexpr absl::Duration kLongestPause = absl::Milliseconds(2);

class StoreSnapshot final : public ShardSnapshot {
 public:
  // `parameters` is null where they are not wanted.
  StoreSnapshot(const StoreSnapshotOptions& options, std::shared_ptr<StateSnapshot> snapshot,
                std::unique_ptr<const ParameterCopies> parameters,
                const ShardStore::SnapshotCounts& counts)
      : store_(options.store),
        generation_(options.shape->generation()),
        step_(counts.step),
        snapshot_(std::move(snapshot)),
        parameters_(std::move(parameters)),
        stored_(store_->StoredParts()) {
    const OptimizerSpec& spec = options.shape->spec();
    const auto slots_of = [&](int parameter) {
      return SlotsOfParameter(spec.space.parameter(parameter),
                              (*options.groups)[spec.space.group_of(parameter)], spec.state);
    };
    std::set<int32_t> owned;
    for (const Slice& slice : options.shape->slices(options.rank)) owned.insert(slice.parameter);
    for (const int32_t parameter : owned) {
      for (const ParameterSlot& slot : slots_of(parameter)) {
        if (!slot.is_scalar()) continue;
        Part part;
        part.parameter = parameter;
        part.slot = slot.name;
        part.format = StateFormat::kFloat64;
        part.elements = 1;
        parts_.push_back(std::move(part));
        scalars_.push_back(slot.kind == SlotKind::kStep
                               ? static_cast<double>(counts.step_counts[parameter])
                               : counts.scalar_slots[parameter][slot.index]);
      }
    }
    for (const ShardStore::StoredPart& stored : stored_) {
      const std::vector<ParameterSlot> slots = slots_of(stored.parameter);
      const auto slot = std::find_if(slots.begin(), slots.end(), [&](const ParameterSlot& each) {
        return !each.is_scalar() && each.index == stored.slot;
      });
      Part part;
      part.parameter = stored.parameter;
      part.slot = slot->name;
      part.format = IsCoded(slot->format) ? StateFormat::kFloat32 : slot->format;
      part.offset_elements = stored.offset_elements;
      part.elements = stored.elements;
      if (stored.array.is_coded()) part.code = stored.array.coded().code;
      parts_.push_back(std::move(part));
    }
    first_parameter_ = static_cast<int>(parts_.size());
    if (parameters_ == nullptr) return;
    parts_.insert(parts_.end(), parameters_->parts().begin(), parameters_->parts().end());
  }

  ~StoreSnapshot() override { CloseIt(); }
  void Close() override { CloseIt(); }
  void CopyAhead() override { snapshot_->CopyAhead(); }

  StepNumber step() const override { return step_; }
  Generation generation() const override { return generation_; }
  const std::vector<Part>& parts() const override { return parts_; }

  PartState state(int part) const override {
    const int scalars = static_cast<int>(scalars_.size());
    if (part < scalars || part >= first_parameter_) return PartState::kKept;
    switch (snapshot_->state(stored_[part - scalars].own)) {
      case StateSnapshot::BlockState::kLive:
        return PartState::kLive;
      case StateSnapshot::BlockState::kCopied:
        return PartState::kKept;
      case StateSnapshot::BlockState::kLost:
        break;
    }
    return PartState::kLost;
  }

  Bytes Read(int part, int64_t first, int64_t elements) const override {
    const int64_t offset = first * ElementBytes(parts_[part].format);
    const int scalars = static_cast<int>(scalars_.size());
    if (part < scalars) return {reinterpret_cast<const char*>(&scalars_[part]) + offset, nullptr};
    if (part >= first_parameter_) {
      return {parameters_->At(part - first_parameter_) + offset, nullptr};
    }
    const ShardStore::StoredPart& stored = stored_[part - scalars];
    const char* const data = snapshot_->At(stored.own, stored.range);
    if (!stored.array.is_coded()) return {data + offset, nullptr};
    CodedArray coded = stored.array.coded();
    // Nobody writes there.
    coded.codes = reinterpret_cast<uint8_t*>(const_cast<char*>(data));
    coded.scales = const_cast<char*>(snapshot_->At(stored.own, stored.range + 1));
    std::vector<double> wide(elements);
    ReadSlotRacily(coded, stored.elements, first, elements, wide.data());
    auto values = std::make_shared<const std::vector<float>>(wide.begin(), wide.end());
    return {reinterpret_cast<const char*>(values->data()), values};
  }

  Bytes ReadKept(int part, KeptArray array, int64_t first, int64_t elements) const override {
    if (!parts_[part].code.has_value()) return Read(part, first, elements);
    const BlockCode code = *parts_[part].code;
    const ShardStore::StoredPart& stored = stored_[part - static_cast<int>(scalars_.size())];
    if (array == KeptArray::kValues) {
      return {snapshot_->At(stored.own, stored.range) + CodeBytes(code, first), nullptr};
    }
    return {snapshot_->At(stored.own, stored.range + 1) + ScaleBytes(code, first), nullptr};
  }

 private:
  void CloseIt() { store_->snapshots().Close(snapshot_.get()); }

  const std::shared_ptr<const ShardStore> store_;
  const Generation generation_;
  const StepNumber step_;
  const std::shared_ptr<StateSnapshot> snapshot_;
  const std::unique_ptr<const ParameterCopies> parameters_;
  const std::vector<ShardStore::StoredPart> stored_;
  std::vector<Part> parts_;  // scalars_, then stored_, then parameters_
  int first_parameter_ = 0;  // of parts_
  std::vector<double> scalars_;
};

class PreparedStoreSnapshot final : public PreparedSnapshot {
 public:
  PreparedStoreSnapshot(StoreSnapshotOptions options, std::shared_ptr<StateSnapshot> snapshot,
                        std::unique_ptr<ParameterCopies> parameters)
      : options_(std::move(options)),
        snapshot_(std::move(snapshot)),
        parameters_(std::move(parameters)) {}

  std::unique_ptr<ShardSnapshot> TryOpen() override {
    const absl::optional<ShardStore::SnapshotCounts> counts = options_.store->TryOpen(snapshot_);
    if (!counts.has_value()) return nullptr;
    if (parameters_ != nullptr && !parameters_->Copy(*options_.parameters->Get())) {
      options_.store->snapshots().Close(snapshot_.get());
      return nullptr;
    }
    return std::make_unique<StoreSnapshot>(options_, std::move(snapshot_), std::move(parameters_),
                                           *counts);
  }

 private:
  const StoreSnapshotOptions options_;
  std::shared_ptr<StateSnapshot> snapshot_;
  std::unique_ptr<ParameterCopies> parameters_;  // null where they are not wanted
};

}  // namespace

absl::StatusOr<std::unique_ptr<PreparedSnapshot>> PrepareStoreSnapshot(
    const StoreSnapshotOptions& options) {
  if (options.contents.parameters &&
      (options.parameters == nullptr || options.parameters->Get() == nullptr)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "rank %d has no parameters yet: its trainer has not given their values", options.rank));
  }
  SnapshotMemory::Piece state;
  if (options.contents.keep_copies) {
    absl::StatusOr<SnapshotMemory::Piece> taken =
        options.memory->Take(options.store->snapshots().bytes());
    if (!taken.ok()) return taken.status();
    state = *std::move(taken);
  }
  std::unique_ptr<ParameterCopies> parameters;
  if (options.contents.parameters) {
    absl::StatusOr<std::unique_ptr<ParameterCopies>> copies =
        ParameterCopies::Allocate(options.shape, options.rank, *options.memory);
    if (!copies.ok()) return copies.status();
    parameters = *std::move(copies);
  }
  return std::unique_ptr<PreparedSnapshot>(std::make_unique<PreparedStoreSnapshot>(
      options, options.store->snapshots().Prepare(std::move(state)), std::move(parameters)));
}

absl::StatusOr<std::unique_ptr<ShardSnapshot>> OpenStoreSnapshot(
    const StoreSnapshotOptions& options, absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  const absl::StatusOr<std::unique_ptr<PreparedSnapshot>> prepared = PrepareStoreSnapshot(options);
  if (!prepared.ok()) return prepared.status();
  absl::Duration pause = kPause;
  while (true) {
    std::unique_ptr<ShardSnapshot> snapshot = (*prepared)->TryOpen();
    if (snapshot != nullptr) return snapshot;
    if (absl::Now() + pause > deadline) {
      return absl::AbortedError(absl::StrFormat(
          "no snapshot of rank %d could be opened for %s: a step was being applied, "
          "or the state replaced, all the time; ask again",
          options.rank, absl::FormatDuration(patience)));
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace optshard
