#include "server/shard/state/shard_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checked_math.h"
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
};

// By parameter and offset.
std::vector<Stretch> StretchesOf(const ShardStore::Options& options) {
  std::vector<Stretch::Part> parts;
  std::vector<const Bucket*> own;
  for (const Bucket& bucket : *options.buckets) {
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
      stretch.parameter = &options.space->parameter(part.where->parameter);
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

}  // namespace

ShardStore::State ShardStore::State::From(int64_t element) const {
  State part;
  std::transform(slots.begin(), slots.end(), part.slots.begin(),
                 [&](const SlotArray& slot) { return slot.From(element); });
  part.master = master.From(element);
  if (correction != nullptr) part.correction = correction + element;
  return part;
}

void ShardStore::Options::TakeSlotsOf(absl::Span<const GroupUpdate> groups) {
  slots = SlotsOf(groups);
  scalar_slots = 0;
  initial_scalar_slots.clear();
  for (const GroupUpdate& group : groups) {
    scalar_slots = std::max(scalar_slots, static_cast<int>(group.rule->spec().scalar_slots.size()));
    initial_scalar_slots.push_back(group.rule->InitialScalarSlots(group.hyperparameters));
  }
}

ShardMemory::Bytes ShardStore::BytesFor(const Options& options) {
  int64_t slot_bytes = 0;
  for (const Stretch& stretch : StretchesOf(options)) {
    // A request may ask for more than there are numbers for: such a need is refused as too large.
    for (const Slot& slot : options.slots[stretch.group]) {
      const int64_t values = slot.ValuesFor(stretch.parameter->shape, stretch.elements);
      const SlotType type = SlotTypeOf(options.state, *stretch.parameter, slot);
      slot_bytes = SaturatingAdd(slot_bytes, SlotArrays::Bytes(values, type));
    }
    if (options.state.HasMaster(stretch.parameter->dtype)) {
      slot_bytes = SaturatingAdd(slot_bytes, SlotArrays::Bytes(stretch.elements, kMasterType));
    }
    if (options.state.HasCorrection(stretch.parameter->dtype)) {
      slot_bytes = SaturatingAdd(slot_bytes, SlotArrays::CorrectionBytes(stretch.elements));
    }
  }
  const auto own_buckets = static_cast<int>(
      std::count_if(options.buckets->begin(), options.buckets->end(),
                    [&](const Bucket& bucket) { return bucket.owner == options.rank; }));
  return {static_cast<size_t>(slot_bytes),
          ShardLedger::Bytes(options.space->parameter_count(), own_buckets, options.scalar_slots)};
}

int64_t ShardStore::ReducedGradientBytes(const Options& options) {
  int64_t bytes = 0;
  for (const Bucket& bucket : *options.buckets) {
    if (bucket.owner != options.rank) continue;
    bytes += ArrayBytes(bucket.elements, ArithmeticOf(bucket.dtype));
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<ShardStore>> ShardStore::Create(const Options& options,
                                                               absl::optional<ShardMemory> memory) {
  const ShardMemory::Bytes bytes = BytesFor(options);
  if (!memory.has_value()) {
    absl::StatusOr<ShardMemory> made =
        ShardMemory::Private(bytes, absl::StrCat("the optimizer state of rank ", options.rank));
    if (!made.ok()) return made.status();
    memory = *std::move(made);
  }
  if (memory->bytes.slots != bytes.slots || memory->bytes.ledger != bytes.ledger) {
    return absl::InternalError(absl::StrFormat(
        "the memory for the optimizer state of rank %d has %d bytes for slots and %d for the "
        "ledger, expected %d and %d; was it made by another plan?",
        options.rank, memory->bytes.slots, memory->bytes.ledger, bytes.slots, bytes.ledger));
  }
  std::unique_ptr<ShardStore> store(new ShardStore());
  store->memory_ = *std::move(memory);
  const ParameterSpace& space = *options.space;
  store->parameter_count_ = space.parameter_count();
  store->scalar_slot_count_ = options.scalar_slots;
  store->pieces_.resize(space.parameter_count());

  for (const Bucket& bucket : *options.buckets) {
    if (bucket.owner != options.rank) continue;
    OwnBucket own;
    own.bucket = &bucket;
    own.states.resize(bucket.spans.size());
    store->own_.push_back(std::move(own));
  }
  store->ledger_.emplace(store->memory_.ledger, space.parameter_count(),
                         static_cast<int>(store->own_.size()), options.scalar_slots);

  if (options.keep_reduced_gradients) {
    absl::StatusOr<MappedMemory> gradients =
        MappedMemory::Allocate(ReducedGradientBytes(options),
                               absl::StrCat("the reduced gradients of rank ", options.rank));
    if (!gradients.ok()) return gradients.status();
    store->reduced_gradients_ = std::move(*gradients);
  }

  const bool is_new = !ShardLedger::Read(store->memory_.ledger).has_value();
  if (!is_new) store->ledger_->EndInterruptedWrites();
  for (int p = 0; is_new && p < space.parameter_count(); ++p) {
    for (int k = 0; k < options.scalar_slots; ++k) {
      store->ledger_->scalar_slot(p, k).store(options.initial_scalar_slots[space.group_of(p)][k],
                                              std::memory_order_relaxed);
    }
  }
  SlotArrays arrays(store->memory_.slots);
  for (const Stretch& stretch : StretchesOf(options)) {
    const std::vector<Slot>& slots = options.slots[stretch.group];
    const Stretch::Part& first = stretch.parts[0];
    State state;
    for (size_t s = 0; s < slots.size(); ++s) {
      const int64_t values = slots[s].ValuesFor(stretch.parameter->shape, stretch.elements);
      if (values == 0) continue;
      state.slots[s] = arrays.Take(values, SlotTypeOf(options.state, *stretch.parameter, slots[s]));
      if (is_new && slots[s].initial != 0) FillSlot(state.slots[s], values, slots[s].initial);
      if (slots[s].has_own_shape()) {
        store->whole_slots_[{first.where->parameter, static_cast<int>(s)}] = {first.own, first.span,
                                                                              0, values};
      }
    }
    if (options.state.HasMaster(stretch.parameter->dtype)) {
      state.master = arrays.Take(stretch.elements, kMasterType).plain();
    }
    if (options.state.HasCorrection(stretch.parameter->dtype)) {
      state.correction = arrays.TakeCorrections(stretch.elements);
    }
    store->state_bytes_ += StateBytes(options.state, *stretch.parameter, slots, stretch.elements);
    const int64_t begin = first.where->parameter_offset_elements;
    for (const Stretch::Part& part : stretch.parts) {
      const BucketSpan& span = *part.where;
      store->own_[part.own].states[part.span] = state.From(span.parameter_offset_elements - begin);
      if (&part == &first) DropWholeSlots(slots, &state);
      store->pieces_[span.parameter].push_back(
          {part.own, part.span, span.parameter_offset_elements, span.elements});
    }
  }
  char* gradient = static_cast<char*>(store->reduced_gradients_.data());
  for (OwnBucket& own : store->own_) {
    if (gradient == nullptr) break;
    const DType dtype = ArithmeticOf(own.bucket->dtype);
    own.reduced_gradient = Buffer(gradient, dtype);
    gradient += ArrayBytes(own.bucket->elements, dtype);
  }
  return store;
}

void ShardStore::BeginWrite(int own) {
  // Acquire keeps the writes that follow behind it.
  ledger_->version(own).sequence.fetch_add(1, std::memory_order_acq_rel);
}

void ShardStore::EndWrite(int own, StepNumber step) {
  ledger_->version(own).step.store(step, std::memory_order_relaxed);
  ledger_->version(own).sequence.fetch_add(1, std::memory_order_release);
}

void ShardStore::MarkUnchanged(int own, StepNumber step) {
  ledger_->version(own).step.store(step, std::memory_order_relaxed);
}

void ShardStore::CountStep(StepNumber step, const std::vector<bool>& updated,
                           absl::FunctionRef<const ScalarSlots*(int parameter)> after) {
  ledger_->counts_version().sequence.fetch_add(1, std::memory_order_acq_rel);
  for (int p = 0; p < parameter_count_; ++p) {
    if (!updated[p]) continue;
    ledger_->step_count(p).store(step_count(p) + 1, std::memory_order_relaxed);
    const ScalarSlots* const scalars = scalar_slot_count_ == 0 ? nullptr : after(p);
    for (int k = 0; scalars != nullptr && k < scalar_slot_count_; ++k) {
      ledger_->scalar_slot(p, k).store((*scalars)[k], std::memory_order_relaxed);
    }
  }
  ledger_->counts_version().step.store(step, std::memory_order_relaxed);
  ledger_->counts_version().sequence.fetch_add(1, std::memory_order_release);
}

ScalarSlots ShardStore::scalar_slots(int parameter) const {
  ScalarSlots values{};
  for (int k = 0; k < scalar_slot_count_; ++k) {
    values[k] = ledger_->scalar_slot(parameter, k).load(std::memory_order_relaxed);
  }
  return values;
}

bool ShardStore::Owns(int parameter, int64_t offset_elements, int64_t elements) const {
  const absl::optional<int64_t> end = CheckedAdd(offset_elements, elements);
  if (!end.has_value()) return false;
  int64_t reached = offset_elements;
  for (const Piece& piece : pieces_[parameter]) {
    if (reached >= *end) break;
    if (piece.parameter_offset > reached) return false;
    reached = std::max(reached, piece.parameter_offset + piece.elements);
  }
  return reached >= *end;
}

absl::Span<const ShardStore::Piece> ShardStore::PiecesFrom(int parameter, int slot,
                                                           int64_t offset_elements) const {
  const auto whole = whole_slots_.find({parameter, slot});
  const absl::Span<const Piece> pieces = whole != whole_slots_.end()
                                             ? absl::MakeConstSpan(&whole->second, 1)
                                             : absl::MakeConstSpan(pieces_[parameter]);
  const auto first = std::upper_bound(pieces.begin(), pieces.end(), offset_elements,
                                      [](int64_t offset, const Piece& piece) {
                                        return offset < piece.parameter_offset + piece.elements;
                                      });
  return pieces.subspan(first - pieces.begin());
}

void ShardStore::Write(int parameter, int slot, int64_t offset_elements,
                       absl::Span<const double> values) {
  const int64_t end = offset_elements + static_cast<int64_t>(values.size());
  for (const Piece& piece : PiecesFrom(parameter, slot, offset_elements)) {
    if (piece.parameter_offset >= end) break;
    const int64_t from = std::max(offset_elements, piece.parameter_offset);
    const int64_t to = std::min(end, piece.parameter_offset + piece.elements);
    const State& state = own_[piece.own].states[piece.span];
    const double* const given = values.data() + (from - offset_elements);
    const int64_t within = from - piece.parameter_offset;
    BeginWrite(piece.own);
    if (slot == kCorrection) {
      std::copy_n(given, to - from, state.correction + within);
    } else {
      WriteSlot(slot == kMaster ? SlotArray(state.master) : state.slots[slot], within, to - from,
                given);
    }
    EndWrite(piece.own, ledger_->version(piece.own).step.load(std::memory_order_relaxed));
  }
}

void ShardStore::WriteCount(int parameter, StepNumber count, const ScalarSlots& scalar_slots) {
  ledger_->counts_version().sequence.fetch_add(1, std::memory_order_acq_rel);
  ledger_->step_count(parameter).store(count, std::memory_order_relaxed);
  for (int k = 0; k < scalar_slot_count_; ++k) {
    ledger_->scalar_slot(parameter, k).store(scalar_slots[k], std::memory_order_relaxed);
  }
  ledger_->counts_version().sequence.fetch_add(1, std::memory_order_release);
}

absl::optional<StepNumber> ShardStore::TryRead(int parameter, int slot, int64_t offset_elements,
                                               absl::Span<double> out) const {
  const int64_t end = offset_elements + static_cast<int64_t>(out.size());
  const absl::Span<const Piece> pieces = PiecesFrom(parameter, slot, offset_elements);
  std::vector<uint64_t> sequences;
  absl::optional<StepNumber> step;
  for (auto piece = pieces.begin(); piece != pieces.end() && piece->parameter_offset < end;
       ++piece) {
    const ShardLedger::Version& version = ledger_->version(piece->own);
    const uint64_t sequence = version.sequence.load(std::memory_order_acquire);
    if (sequence % 2 != 0) return absl::nullopt;
    const StepNumber of_piece = version.step.load(std::memory_order_relaxed);
    if (step.has_value() && *step != of_piece) return absl::nullopt;
    step = of_piece;
    sequences.push_back(sequence);
    const int64_t from = std::max(offset_elements, piece->parameter_offset);
    const int64_t to = std::min(end, piece->parameter_offset + piece->elements);
    const State& state = own_[piece->own].states[piece->span];
    const int64_t within = from - piece->parameter_offset;
    double* const values = out.data() + (from - offset_elements);
    if (slot == kCorrection) {
      ReadCorrectionsRacily(state.correction + within, to - from, values);
    } else {
      ReadSlotRacily(slot == kMaster ? SlotArray(state.master) : state.slots[slot], piece->elements,
                     within, to - from, values);
    }
  }
  auto piece = pieces.begin();
  for (const uint64_t sequence : sequences) {
    if (ledger_->version(piece->own).sequence.fetch_add(0, std::memory_order_acq_rel) != sequence) {
      return absl::nullopt;
    }
    ++piece;
  }
  if (!step.has_value()) step = ledger_->counts_version().step.load(std::memory_order_relaxed);
  return step;
}

absl::optional<ShardStore::CountAtStep> ShardStore::TryReadStepCount(int parameter) const {
  const uint64_t sequence = ledger_->counts_version().sequence.load(std::memory_order_acquire);
  if (sequence % 2 != 0) return absl::nullopt;
  CountAtStep read;
  read.count = step_count(parameter);
  read.scalar_slots = scalar_slots(parameter);
  read.step = ledger_->counts_version().step.load(std::memory_order_relaxed);
  if (ledger_->counts_version().sequence.fetch_add(0, std::memory_order_acq_rel) != sequence) {
    return absl::nullopt;
  }
  return read;
}

}  // namespace optshard
