#include "server/shard/snapshot/store_snapshot.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/hyperparameters.h"
#include "common/optimizer_spec.h"
#include "server/shard/snapshot/between_calls.h"
#include "server/shard/snapshot/parameter_copies.h"
#include "server/shard/snapshot/state_snapshots.h"
#include "server/shard/state/device_access.h"
#include "server/shard/state/parameter_slots.h"
#include "server/shard/state/slot_memory.h"

namespace optshard {
namespace {

constexpr absl::Duration kPause = absl::Microseconds(50);
constexpr absl::Duration kLongestPause = absl::Milliseconds(2);

// What a snapshot of the store gives out, which does not depend on the step. Its making takes as
// long as there are parameters and buckets.
struct SnapshotParts {
  SnapshotParts(const StoreSnapshotOptions& options, const ParameterCopies* parameters);

  std::vector<ShardStore::StoredPart> stored;
  // Which number of which parameter each of the first parts is; -1: how often it was updated.
  std::vector<std::pair<int32_t, int>> numbers;
  std::vector<ShardSnapshot::Part> parts;  // numbers, then stored, then parameters
  int first_parameter = 0;                 // of parts
};

// `parameters` is null where they are not wanted.
SnapshotParts::SnapshotParts(const StoreSnapshotOptions& options, const ParameterCopies* parameters)
    : stored(options.store->StoredParts()) {
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
      ShardSnapshot::Part part;
      part.parameter = parameter;
      part.slot = slot.name;
      part.format = StateFormat::kFloat64;
      part.elements = 1;
      parts.push_back(std::move(part));
      numbers.emplace_back(parameter, slot.kind == SlotKind::kStep ? -1 : slot.index);
    }
  }
  for (const ShardStore::StoredPart& each : stored) {
    const std::vector<ParameterSlot> slots = slots_of(each.parameter);
    const auto slot = std::find_if(slots.begin(), slots.end(), [&](const ParameterSlot& known) {
      return !known.is_scalar() && known.index == each.slot;
    });
    ShardSnapshot::Part part;
    part.parameter = each.parameter;
    part.slot = slot->name;
    part.format = IsCoded(slot->format) ? StateFormat::kFloat32 : slot->format;
    part.offset_elements = each.offset_elements;
    part.elements = each.elements;
    if (each.array.is_coded()) part.code = each.array.coded().code;
    parts.push_back(std::move(part));
  }
  first_parameter = static_cast<int>(parts.size());
  if (parameters == nullptr) return;
  parts.insert(parts.end(), parameters->parts().begin(), parameters->parts().end());
}

class StoreSnapshot final : public ShardSnapshot {
 public:
  // `parameters` is null where they are not wanted. Made between two calls, which may wait for it.
  StoreSnapshot(const StoreSnapshotOptions& options, std::shared_ptr<StateSnapshot> snapshot,
                std::unique_ptr<ParameterCopies> parameters, bool parameters_later,
                SnapshotParts parts, const ShardStore::SnapshotCounts& counts, std::string blob,
                const BetweenCalls& now)
      : store_(options.store),
        device_access_(options.device_access),
        generation_(options.shape->generation()),
        step_(counts.step),
        hyperparameters_(now.hyperparameters),
        blob_(std::move(blob)),
        snapshot_(std::move(snapshot)),
        parameters_(std::move(parameters)),
        parameters_later_(parameters_later),
        parts_(std::move(parts)) {
    for (const auto& [parameter, number] : parts_.numbers) {
      scalars_.push_back(number < 0 ? static_cast<double>(counts.step_counts[parameter])
                                    : counts.scalar_slots[parameter][number]);
    }
  }

  ~StoreSnapshot() override { CloseIt(); }
  void Close() override { CloseIt(); }
  absl::Status KeepParameters() override {
    return parameters_ != nullptr ? parameters_->Keep() : absl::OkStatus();
  }
  void SettleParameters() override {
    if (parameters_ != nullptr) parameters_->Settle();
  }
  void CopyAhead() override { snapshot_->CopyAhead(); }
  std::shared_ptr<const RightOfWay> steps() const override { return snapshot_->steps(); }

  StepNumber step() const override { return step_; }
  Generation generation() const override { return generation_; }
  absl::Span<const Hyperparameters> hyperparameters() const override {
    if (hyperparameters_ == nullptr) return {};
    return *hyperparameters_;
  }
  absl::string_view blob() const override { return blob_; }
  const std::vector<Part>& parts() const override { return parts_.parts; }

  PartState state(int part) const override {
    const int scalars = static_cast<int>(scalars_.size());
    if (part < scalars) return PartState::kKept;
    if (part >= parts_.first_parameter) {
      return parameters_->AreThere() ? PartState::kKept : PartState::kLost;
    }
    switch (snapshot_->state(parts_.stored[part - scalars].own)) {
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
    const int64_t offset = first * ElementBytes(parts_.parts[part].format);
    const int scalars = static_cast<int>(scalars_.size());
    if (part < scalars) return {reinterpret_cast<const char*>(&scalars_[part]) + offset, nullptr};
    if (part >= parts_.first_parameter) {
      return {parameters_->At(part - parts_.first_parameter) + offset, nullptr};
    }
    const ShardStore::StoredPart& stored = parts_.stored[part - scalars];
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
    if (!parts_.parts[part].code.has_value()) return Read(part, first, elements);
    const BlockCode code = *parts_.parts[part].code;
    const ShardStore::StoredPart& stored = parts_.stored[part - static_cast<int>(scalars_.size())];
    if (array == KeptArray::kValues) {
      return {snapshot_->At(stored.own, stored.range) + CodeBytes(code, first), nullptr};
    }
    return {snapshot_->At(stored.own, stored.range + 1) + ScaleBytes(code, first), nullptr};
  }

 private:
  void CloseIt() {
    store_->snapshots().Close(snapshot_.get());
    if (parameters_later_) parameters_->StopCopying(*store_);
  }

  const std::shared_ptr<const ShardStore> store_;
  const std::shared_ptr<DeviceAccess> device_access_;  // which outlives copies that it has begun
  const Generation generation_;
  const StepNumber step_;
  const std::shared_ptr<const std::vector<Hyperparameters>> hyperparameters_;
  const std::string blob_;
  const std::shared_ptr<StateSnapshot> snapshot_;
  const std::unique_ptr<ParameterCopies> parameters_;
  const bool parameters_later_;
  const SnapshotParts parts_;
  std::vector<double> scalars_;
};

class PreparedStoreSnapshot final : public PreparedSnapshot {
 public:
  PreparedStoreSnapshot(StoreSnapshotOptions options, std::shared_ptr<StateSnapshot> snapshot,
                        std::unique_ptr<ParameterCopies> parameters)
      : options_(std::move(options)),
        snapshot_(std::move(snapshot)),
        parameters_(std::move(parameters)),
        parts_(options_, parameters_.get()) {}

  absl::StatusOr<std::unique_ptr<ShardSnapshot>> TryOpen(const BetweenCalls& now) override {
    DeviceAccess* const device = options_.store->device_access().get();
    return device == nullptr ? TryOpenOnHost(now) : TryOpenOnDevice(now, *device);
  }

 private:
  static absl::Status Busy() {
    return absl::AbortedError("a step is being applied, or the state replaced");
  }

  absl::StatusOr<std::unique_ptr<ShardSnapshot>> TryOpenOnHost(const BetweenCalls& now) {
    // Before: where the state is not being replaced afterwards, the blob was not either.
    const StepNumber finished = options_.store->ledger().progress().finished;
    std::string blob;
    if (options_.contents.blob && options_.blob) blob = options_.blob(finished);
    std::shared_ptr<const ParameterMemory> memory;
    if (parameters_ != nullptr) {
      memory = options_.parameters->Get();
      if (memory == nullptr) return Busy();
    }
    // Before the state: if no step was being applied then, none has written parameters either.
    DeviceAccess* const device = options_.device_access.get();
    absl::optional<uint64_t> version;
    if (device != nullptr) version = device->version();
    const bool later = memory != nullptr && options_.contents.parameters_later &&
                       memory->writes != nullptr && !memory->writes->are_expected() &&
                       parameters_->BeginCopying(memory, *options_.store);
    const absl::optional<ShardStore::SnapshotCounts> counts = options_.store->TryOpen(snapshot_);
    const bool is_same = counts.has_value() && counts->step == finished;
    const auto copy = [&] {
      if (device == nullptr) return parameters_->CopyNow(*memory) ? absl::OkStatus() : Busy();
      return version.has_value() ? parameters_->BeginDeviceCopy(memory, *device, *version) : Busy();
    };
    absl::Status opened = is_same ? absl::OkStatus() : Busy();
    if (opened.ok() && memory != nullptr && !later) opened = copy();
    if (!opened.ok()) {
      options_.store->snapshots().Close(snapshot_.get());
      if (later) parameters_->StopCopying(*options_.store);
      return opened;
    }
    return std::make_unique<StoreSnapshot>(options_, std::move(snapshot_), std::move(parameters_),
                                           later, std::move(parts_), *counts, std::move(blob), now);
  }

  absl::StatusOr<std::unique_ptr<ShardSnapshot>> TryOpenOnDevice(const BetweenCalls& now,
                                                                 DeviceAccess& device) {
    absl::Status usable = device.CheckWritten();
    if (!usable.ok()) return usable;
    const absl::optional<ShardStore::DeviceMoment> moment = options_.store->MomentOnDevice();
    if (!moment.has_value()) return Busy();
    StateSnapshots& snapshots = options_.store->snapshots();
    // Before anything is copied: who waits for memory tries again and again.
    absl::Status found = snapshots.FindMemory(snapshot_, moment->version);
    if (!found.ok()) return found;
    std::string blob;
    if (options_.contents.blob && options_.blob) blob = options_.blob(moment->counts.step);
    // Before the state: the trainer's stream waits for them.
    if (parameters_ != nullptr) {
      const std::shared_ptr<const ParameterMemory> memory = options_.parameters->Get();
      if (memory == nullptr) return Busy();
      absl::Status begun = parameters_->BeginDeviceCopy(memory, device, moment->version);
      if (!begun.ok()) return begun;
    }
    absl::Status opened = snapshots.OpenOnDevice(snapshot_, device, moment->version);
    if (!opened.ok()) return opened;
    return std::make_unique<StoreSnapshot>(options_, std::move(snapshot_), std::move(parameters_),
                                           false, std::move(parts_), moment->counts,
                                           std::move(blob), now);
  }

  const StoreSnapshotOptions options_;
  std::shared_ptr<StateSnapshot> snapshot_;
  std::unique_ptr<ParameterCopies> parameters_;  // null where they are not wanted
  SnapshotParts parts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PreparedSnapshot>> PrepareStoreSnapshot(
    StoreSnapshotOptions options) {
  if (options.contents.parameters &&
      (options.parameters == nullptr || options.parameters->Get() == nullptr)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "rank %d has no parameters yet: its trainer has not given their values", options.rank));
  }
  if (options.contents.parameters && options.contents.parameters_later) {
    // What the trainer has written since its last call shows whether it is expected to. Who does
    // not say, would not say so later either.
    const std::shared_ptr<const ParameterMemory> memory = options.parameters->Get();
    options.contents.parameters_later = options.device_access == nullptr &&
                                        memory->writes != nullptr &&
                                        memory->writes->CountNow().ok();
  }
  SnapshotMemory::Piece state;
  std::shared_ptr<SnapshotMemory> later;
  const bool is_on_device = options.store->device_access() != nullptr;
  if (is_on_device ? options.contents.state : options.contents.keep_copies) {
    const int64_t bytes = options.store->snapshots().bytes();
    absl::StatusOr<SnapshotMemory::Piece> taken = options.memory->Take(bytes);
    if (is_on_device && !options.contents.keep_copies) later = options.memory;
    const bool others_have_it = absl::IsResourceExhausted(taken.status()) && later != nullptr &&
                                later->used_bytes() > 0 && bytes <= later->bytes();
    if (!taken.ok() && !others_have_it) return taken.status();
    if (taken.ok()) state = *std::move(taken);
  }
  std::unique_ptr<ParameterCopies> parameters;
  if (options.contents.parameters) {
    absl::StatusOr<std::unique_ptr<ParameterCopies>> copies =
        ParameterCopies::Allocate(options.shape, options.rank, *options.memory);
    if (!copies.ok()) return copies.status();
    parameters = *std::move(copies);
  }
  std::shared_ptr<StateSnapshot> kept =
      options.store->snapshots().Prepare(std::move(state), std::move(later));
  return std::unique_ptr<PreparedSnapshot>(
      std::make_unique<PreparedStoreSnapshot>(options, std::move(kept), std::move(parameters)));
}

absl::StatusOr<std::unique_ptr<ShardSnapshot>> OpenStoreSnapshot(
    const StoreSnapshotOptions& options, absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  const absl::StatusOr<std::unique_ptr<PreparedSnapshot>> prepared = PrepareStoreSnapshot(options);
  if (!prepared.ok()) return prepared.status();
  absl::Duration pause = kPause;
  while (true) {
    absl::StatusOr<std::unique_ptr<ShardSnapshot>> snapshot = (*prepared)->TryOpen(BetweenCalls());
    if (snapshot.ok() || !MayOpenLater(snapshot.status())) return snapshot;
    if (absl::Now() + pause > deadline) {
      return absl::Status(
          snapshot.status().code(),
          absl::StrFormat("no snapshot of rank %d could be opened for %s; at last: %s; ask again",
                          options.rank, absl::FormatDuration(patience),
                          snapshot.status().message()));
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace optshard
