// Where the state lies: how a store is made over its memory, and how the next generation's store is
// made over that of the running one.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checked_math.h"
#include "common/device_wait.h"
#include "common/errors.h"
#include "server/shard/state/device_slot_memory.h"
#include "server/shard/state/mapped_memory.h"
#include "server/shard/state/shard_store.h"
#include "server/shard/state/slot_memory.h"

namespace optshard {
namespace {

constexpr SlotType kMasterType;  // float32

// An unbroken range of a parameter, and the spans of own buckets that it consists of.
struct Stretch {
  int group = 0;
  const ParameterSpec* parameter = nullptr;
  int64_t elements = 0;
  struct Part {
    int own = 0;
    int span = 0;
    const BucketSpan* where = nullptr;
  };
  std::vector<Part> parts;

  int index() const { return parts[0].where->parameter; }  // the parameter's
};

// By parameter and offset.
std::vector<Stretch> StretchesOf(const ShardStore::Options& options) {
  std::vector<Stretch::Part> parts;
  std::vector<const Bucket*> own;
  for (const Bucket& bucket : options.shape->buckets()) {
    if (bucket.owner != options.rank) continue;
    for (const BucketSpan& span : bucket.spans) {
      parts.push_back(
          {static_cast<int>(own.size()), static_cast<int>(&span - &bucket.spans[0]), &span});
    }
    own.push_back(&bucket);
  }
  const auto key = [](const Stretch::Part& part) {
    return std::make_pair(part.where->parameter, part.where->parameter_offset_elements);
  };
  std::sort(parts.begin(), parts.end(),
            [&](const Stretch::Part& a, const Stretch::Part& b) { return key(a) < key(b); });
  std::vector<Stretch> stretches;
  std::pair<int32_t, int64_t> end(-1, 0);  // of the last stretch
  for (const Stretch::Part& part : parts) {
    if (key(part) != end) {
      Stretch stretch;
      stretch.group = own[part.own]->group;
      stretch.parameter = &options.space().parameter(part.where->parameter);
      stretches.push_back(std::move(stretch));
    }
    stretches.back().elements += part.where->elements;
    stretches.back().parts.push_back(part);
    end = key(part);
    end.second += part.where->elements;
  }
  return stretches;
}

// They are only where the parameter begins.
void DropWholeSlots(const std::vector<Slot>& slots, ShardStore::State* state) {
  for (size_t s = 0; s < slots.size(); ++s) {
    if (slots[s].has_own_shape()) state->slots[s] = SlotArray();
  }
}

int AdmissionOf(const ShardStore::Options& options, const Bucket& bucket) {
  return options.space().admission_of(bucket.spans[0].parameter);
}

int64_t ReducedBytes(const Bucket& bucket) {
  return ArrayBytes(bucket.elements, ArithmeticOf(bucket.dtype));
}

// For people.
std::string StateName(Rank rank) { return absl::StrCat("the optimizer state of rank ", rank); }

absl::StatusOr<std::shared_ptr<void>> Zeroed(DeviceApi* device, size_t bytes,
                                             const std::string& what) {
  if (device != nullptr) {
    absl::StatusOr<std::shared_ptr<void>> zeroed = ZeroedOn(*device, bytes);
    if (!zeroed.ok()) return errors::WithContext(zeroed.status(), what);
    return zeroed;
  }
  absl::StatusOr<MappedMemory> mapped = MappedMemory::Allocate(bytes, what);
  if (!mapped.ok()) return mapped.status();
  const auto owner = std::make_shared<const MappedMemory>(*std::move(mapped));
  return std::shared_ptr<void>(owner, owner->data());
}

// That what `before` keeps lies in the same places with `after`.
absl::Status CheckGrowth(const ShardStore::Options& before, const ShardStore::Options& after) {
  if (after.rank != before.rank ||
      after.space().admission_count() != before.space().admission_count() + 1) {
    return absl::InternalError(absl::StrFormat(
        "the store of rank %d grows to one of rank %d, and from %d admissions to %d; expected the "
        "same rank and one more",
        before.rank, after.rank, before.space().admission_count(),
        after.space().admission_count()));
  }
  const std::vector<Stretch> old = StretchesOf(before);
  const std::vector<Stretch> now = StretchesOf(after);
  for (size_t i = 0; i < old.size(); ++i) {
    const BucketSpan& where = *old[i].parts[0].where;
    const BucketSpan* const found = i < now.size() ? now[i].parts[0].where : nullptr;
    if (found != nullptr && found->parameter == where.parameter &&
        found->parameter_offset_elements == where.parameter_offset_elements &&
        now[i].elements == old[i].elements) {
      continue;
    }
    return absl::InternalError(absl::StrFormat(
        "the next plan does not give rank %d the %d elements from %d on of parameter %d \"%s\", "
        "which it keeps; what is added must not move what was there",
        before.rank, old[i].elements, where.parameter_offset_elements, where.parameter,
        old[i].parameter->name));
  }
  return absl::OkStatus();
}

}  // namespace

void ShardStore::Options::TakeSlotsOf(absl::Span<const GroupUpdate> groups) {
  slots = SlotsOf(groups);
  scalar_slots = 0;
  initial_scalar_slots.clear();
  for (const GroupUpdate& group : groups) {
    scalar_slots = std::max(scalar_slots, static_cast<int>(group.rule->spec().scalar_slots.size()));
    initial_scalar_slots.push_back(group.rule->InitialScalarSlots(group.hyperparameters));
  }
}

ShardMemory::Bytes ShardStore::BytesFor(const Options& options, int admission) {
  int64_t slot_bytes = 0;
  for (const Stretch& stretch : StretchesOf(options)) {
    if (options.space().admission_of(stretch.index()) != admission) continue;
    // A request may ask for more than there are numbers for: such a need is refused as too large.
    for (const Slot& slot : options.slots[stretch.group]) {
      const int64_t values = slot.ValuesFor(stretch.parameter->shape, stretch.elements);
      const SlotType type = SlotTypeOf(options.state(), *stretch.parameter, slot);
      slot_bytes = SaturatingAdd(slot_bytes, SlotArrays::Bytes(values, type));
    }
    if (options.state().HasMaster(stretch.parameter->dtype)) {
      slot_bytes = SaturatingAdd(slot_bytes, SlotArrays::Bytes(stretch.elements, kMasterType));
    }
    if (options.state().HasCorrection(stretch.parameter->dtype)) {
      slot_bytes = SaturatingAdd(slot_bytes, SlotArrays::CorrectionBytes(stretch.elements));
    }
  }
  const std::vector<Bucket>& buckets = options.shape->buckets();
  const auto own_buckets =
      static_cast<int>(std::count_if(buckets.begin(), buckets.end(), [&](const Bucket& bucket) {
        return bucket.owner == options.rank && AdmissionOf(options, bucket) <= admission;
      }));
  int parameters = 0;  // those of earlier admissions come first
  while (parameters < options.space().parameter_count() &&
         options.space().admission_of(parameters) <= admission) {
    ++parameters;
  }
  return {static_cast<size_t>(slot_bytes),
          ShardLedger::Bytes(parameters, own_buckets, options.scalar_slots)};
}

int64_t ShardStore::ReducedGradientBytes(const Options& options) {
  int64_t bytes = 0;
  for (const Bucket& bucket : options.shape->buckets()) {
    if (bucket.owner == options.rank) bytes += ReducedBytes(bucket);
  }
  return bytes;
}

absl::StatusOr<ShardMemory> ShardStore::PrivateMemory(const Options& options, int admission) {
  const ShardMemory::Bytes bytes = BytesFor(options, admission);
  const std::shared_ptr<DeviceApi> device = options.slot_device();
  return device == nullptr ? ShardMemory::Private(bytes, StateName(options.rank))
                           : ShardMemory::OnDevice(bytes, device, StateName(options.rank));
}

absl::StatusOr<std::unique_ptr<ShardStore>> ShardStore::Create(const Options& options,
                                                               std::vector<ShardMemory> memory) {
  const auto admissions = static_cast<size_t>(options.space().admission_count());
  const bool is_private = memory.empty();
  while (is_private && memory.size() < admissions) {
    absl::StatusOr<ShardMemory> made = PrivateMemory(options, static_cast<int>(memory.size()));
    if (!made.ok()) return made.status();
    memory.push_back(*std::move(made));
  }
  if (memory.size() != admissions) {
    return absl::InternalError(
        absl::StrFormat("%s is in %d pieces of memory, expected %d: one for each admission",
                        StateName(options.rank), memory.size(), admissions));
  }
  const auto has_begun = [](const ShardMemory& each) {
    return ShardLedger::Read(each.ledger).has_value();
  };
  const bool is_new = !has_begun(memory.back());
  if (is_new && std::any_of(memory.begin(), memory.end(), has_begun)) {
    return absl::InternalError(absl::StrCat(
        StateName(options.rank),
        " was about to grow, and no step can have used its last piece of memory; leave that out"));
  }
  absl::StatusOr<std::unique_ptr<ShardStore>> store =
      Over(options, std::move(memory), {}, is_new ? 0 : static_cast<int>(admissions));
  if (!store.ok()) return store;
  if (!is_new) (*store)->ledger_->EndInterruptedWrites();
  if (const auto device = options.slot_device(); device != nullptr) {
    absl::StatusOr<std::unique_ptr<DeviceAccess>> access = DeviceAccess::Create(device);
    if (!access.ok()) return access.status();
    (*store)->device_access_ = *std::move(access);
  }
  return store;
}

absl::StatusOr<std::unique_ptr<ShardStore>> ShardStore::Grow(
    const Options& next, absl::optional<ShardMemory> added) const {
  absl::Status grows = CheckGrowth(options_, next);
  if (!grows.ok()) return grows;
  const int admission = options_.space().admission_count();
  if (!added.has_value()) {
    absl::StatusOr<ShardMemory> made = PrivateMemory(next, admission);
    if (!made.ok()) return made.status();
    added = *std::move(made);
  }
  std::vector<ShardMemory> memory = memory_;
  memory.push_back(*std::move(added));
  absl::StatusOr<std::unique_ptr<ShardStore>> grown =
      Over(next, std::move(memory), reduced_gradients_, admission);
  if (!grown.ok()) return grown;
  (*grown)->device_access_ = device_access_;

  ShardLedger& ledger = (*grown)->ledger();
  const StepProgress progress = ledger_->progress();
  for (int p = 0; p < parameter_count_; ++p) {
    ledger.step_count(p).store(step_count(p), std::memory_order_relaxed);
    const ScalarSlots scalars = scalar_slots(p);
    for (int k = 0; k < std::min(scalar_slot_count_, next.scalar_slots); ++k) {
      ledger.scalar_slot(p, k).store(scalars[k], std::memory_order_relaxed);
    }
  }
  ledger.counts_version().step.store(progress.finished, std::memory_order_relaxed);
  for (size_t own = 0; own < (*grown)->own_.size(); ++own) {
    ledger.version(static_cast<int>(own)).step.store(progress.finished, std::memory_order_relaxed);
  }
  ledger.SetProgress(progress);
  return grown;
}

absl::StatusOr<std::unique_ptr<ShardStore>> ShardStore::CreateAlike() const {
  Options alike = options_;
  alike.device = nullptr;
  alike.keep_reduced_gradients = false;
  return Create(alike);
}

int64_t ShardStore::BytesAlike() const {
  int64_t bytes = 0;
  for (const ShardMemory& memory : memory_) {
    bytes += static_cast<int64_t>(memory.bytes.slots + memory.bytes.ledger);
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<ShardStore>> ShardStore::Over(
    const Options& options, std::vector<ShardMemory> memory,
    std::vector<std::shared_ptr<void>> reduced_gradients, int first_new) {
  for (size_t i = 0; i < memory.size(); ++i) {
    const ShardMemory::Bytes bytes = BytesFor(options, static_cast<int>(i));
    const bool counts = i + 1 == memory.size();  // the ledgers before it are no longer read
    if (memory[i].bytes.slots == bytes.slots &&
        (!counts || memory[i].bytes.ledger == bytes.ledger)) {
      continue;
    }
    return absl::InternalError(absl::StrFormat(
        "the memory for %s, admission %d, has %d bytes for slots and %d for the ledger, expected "
        "%d and %d; was it made by another plan?",
        StateName(options.rank), i, memory[i].bytes.slots, memory[i].bytes.ledger, bytes.slots,
        bytes.ledger));
  }
  std::unique_ptr<ShardStore> store(new ShardStore(options));
  store->memory_ = std::move(memory);
  const ParameterSpace& space = options.space();
  store->parameter_count_ = space.parameter_count();
  store->scalar_slot_count_ = options.scalar_slots;
  store->pieces_.resize(space.parameter_count());
  for (const Bucket& bucket : options.shape->buckets()) {
    if (bucket.owner != options.rank) continue;
    OwnBucket own;
    own.bucket = &bucket;
    own.states.resize(bucket.spans.size());
    store->own_.push_back(std::move(own));
  }
  store->ledger_.emplace(store->memory_.back().ledger, space.parameter_count(),
                         static_cast<int>(store->own_.size()), options.scalar_slots);
  for (int p = 0; p < space.parameter_count(); ++p) {
    if (space.admission_of(p) < first_new) continue;
    for (int k = 0; k < options.scalar_slots; ++k) {
      store->ledger_->scalar_slot(p, k).store(options.initial_scalar_slots[space.group_of(p)][k],
                                              std::memory_order_relaxed);
    }
  }
  store->reduced_gradients_ = std::move(reduced_gradients);
  absl::Status placed = store->PlaceReducedGradients();
  if (placed.ok()) placed = store->PlaceSlots(first_new);
  if (!placed.ok()) return placed;
  store->PlaceBlocks();
  return store;
}

absl::Status ShardStore::PlaceSlots(int first_new) {
  const std::shared_ptr<DeviceApi> device = options_.slot_device();
  SlotFiller filler(device.get());
  std::vector<SlotArrays> arrays_of;  // by admission
  for (const ShardMemory& memory : memory_) arrays_of.emplace_back(memory.slots);
  for (const Stretch& stretch : StretchesOf(options_)) {
    const std::vector<Slot>& slots = options_.slots[stretch.group];
    const ParameterSpec& parameter = *stretch.parameter;
    const int admission = options_.space().admission_of(stretch.index());
    SlotArrays& arrays = arrays_of[admission];
    const Stretch::Part& first = stretch.parts[0];
    State state;
    for (size_t s = 0; s < slots.size(); ++s) {
      const int64_t values = slots[s].ValuesFor(parameter.shape, stretch.elements);
      if (values == 0) continue;
      state.slots[s] = arrays.Take(values, SlotTypeOf(options_.state(), parameter, slots[s]));
      if (admission >= first_new && slots[s].initial != 0) {
        absl::Status filled = filler.Fill(state.slots[s], values, slots[s].initial);
        if (!filled.ok()) return filled;
      }
      if (slots[s].has_own_shape()) {
        whole_slots_[{first.where->parameter, static_cast<int>(s)}] = {first.own, first.span, 0,
                                                                       values};
      }
    }
    if (options_.state().HasMaster(parameter.dtype)) {
      state.master = arrays.Take(stretch.elements, kMasterType).plain();
    }
    if (options_.state().HasCorrection(parameter.dtype)) {
      state.correction = arrays.TakeCorrections(stretch.elements);
    }
    state_bytes_ += StateBytes(options_.state(), parameter, slots, stretch.elements);
    const int64_t begin = first.where->parameter_offset_elements;
    for (const Stretch::Part& part : stretch.parts) {
      const BucketSpan& span = *part.where;
      own_[part.own].states[part.span] = state.From(span.parameter_offset_elements - begin);
      if (&part == &first) DropWholeSlots(slots, &state);
      pieces_[span.parameter].push_back(
          {part.own, part.span, span.parameter_offset_elements, span.elements});
    }
  }
  return filler.Finish();
}

absl::Status ShardStore::PlaceReducedGradients() {
  if (!options_.keep_reduced_gradients) return absl::OkStatus();
  std::vector<size_t> bytes(memory_.size());  // by admission
  for (const OwnBucket& own : own_) {
    bytes[AdmissionOf(options_, *own.bucket)] += ReducedBytes(*own.bucket);
  }
  for (size_t i = reduced_gradients_.size(); i < bytes.size(); ++i) {
    absl::StatusOr<std::shared_ptr<void>> gradients =
        Zeroed(options_.device.get(), bytes[i],
               absl::StrCat("the reduced gradients of rank ", options_.rank));
    if (!gradients.ok()) return gradients.status();
    reduced_gradients_.push_back(*std::move(gradients));
  }
  std::vector<char*> next;
  for (const auto& gradients : reduced_gradients_) {
    next.push_back(static_cast<char*>(gradients.get()));
  }
  for (OwnBucket& own : own_) {
    char*& gradient = next[AdmissionOf(options_, *own.bucket)];
    if (gradient == nullptr) continue;
    own.reduced_gradient = Buffer(gradient, ArithmeticOf(own.bucket->dtype));
    gradient += ReducedBytes(*own.bucket);
  }
  return absl::OkStatus();
}

}  // namespace optshard
