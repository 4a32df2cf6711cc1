#include "server/shard/state/shard_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checked_math.h"
#include "common/half.h"
#include "common/memory_layout.h"
#include "common/stagger.h"

namespace optshard {
namespace {

constexpr int64_t kBetweenSlots = StaggerBytes(1);

// One array with a value for each element of the bucket.
int64_t ArrayBytes(const Bucket& bucket, DType dtype) {
  return AlignedElements(bucket.elements, dtype) * static_cast<int64_t>(SizeOf(dtype));
}

// Hands out arrays one after the other.
class Arrays {
 public:
  explicit Arrays(void* memory) : next_(static_cast<char*>(memory)) {}
  Buffer Take(const Bucket& bucket, DType dtype) {
    return Buffer(std::exchange(next_, next_ + ArrayBytes(bucket, dtype) + kBetweenSlots), dtype);
  }

 private:
  char* next_;
};

// A reader copies while the step's threads may be writing, and throws the copy away when the
// sequence number says that they did: a data race on purpose, so that a step never waits for a
// reader. The loads are relaxed atomics (a plain load each on x86-64), which makes the copy defined
// on the reader's side; the writers' plain and vector stores are what tsan would report.
template <typename T>
__attribute__((no_sanitize("thread"))) void RacyCopy(const T* from, int64_t elements, double* to) {
  for (int64_t i = 0; i < elements; ++i) {
    T value;
    __atomic_load(from + i, &value, __ATOMIC_RELAXED);
    to[i] = value;
  }
}

__attribute__((no_sanitize("thread"))) void RacyCopyOfBFloat16(const uint16_t* from,
                                                               int64_t elements, double* to) {
  for (int64_t i = 0; i < elements; ++i) {
    to[i] = FromBFloat16(__atomic_load_n(from + i, __ATOMIC_RELAXED));
  }
}

void RacyCopy(ConstBuffer from, int64_t elements, double* to) {
  if (from.dtype() == DType::kFloat64) {
    RacyCopy(from.As<double>(), elements, to);
  } else if (from.dtype() == DType::kBFloat16) {
    RacyCopyOfBFloat16(from.As<uint16_t>(), elements, to);
  } else {
    RacyCopy(from.As<float>(), elements, to);
  }
}

void Fill(Buffer array, int64_t elements, double value) {
  if (array.dtype() == DType::kFloat64) {
    std::fill_n(array.As<double>(), elements, value);
  } else if (array.dtype() == DType::kBFloat16) {
    std::fill_n(array.As<uint16_t>(), elements, ToBFloat16(static_cast<float>(value)));
  } else {
    std::fill_n(array.As<float>(), elements, static_cast<float>(value));
  }
}

}  // namespace

ShardMemory::Bytes ShardStore::BytesFor(const Options& options) {
  int64_t slot_bytes = 0;
  int own_buckets = 0;
  for (const Bucket& bucket : *options.buckets) {
    if (bucket.owner != options.rank) continue;
    ++own_buckets;
    // A request may ask for more than there are numbers for: such a need is refused as too large.
    const DType slot_dtype = options.state.SlotDType(bucket.dtype);
    slot_bytes = SaturatingAdd(
        slot_bytes, SaturatingMultiply(ArrayBytes(bucket, slot_dtype) + kBetweenSlots,
                                       static_cast<int64_t>(options.slots[bucket.group].size())));
    if (options.state.HasMaster(bucket.dtype)) {
      slot_bytes = SaturatingAdd(slot_bytes, ArrayBytes(bucket, DType::kFloat32) + kBetweenSlots);
    }
  }
  return {static_cast<size_t>(slot_bytes),
          ShardLedger::Bytes(options.space->parameter_count(), own_buckets, options.scalar_slots)};
}

int64_t ShardStore::ReducedGradientBytes(const Options& options) {
  int64_t bytes = 0;
  for (const Bucket& bucket : *options.buckets) {
    if (bucket.owner == options.rank) bytes += ArrayBytes(bucket, ArithmeticOf(bucket.dtype));
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
    own.slot_count = static_cast<int>(options.slots[bucket.group].size());
    const int index = static_cast<int>(store->own_.size());
    for (const BucketSpan& span : bucket.spans) {
      store->pieces_[span.parameter].push_back(
          {index, span.parameter_offset_elements, span.bucket_offset_elements, span.elements});
      store->state_bytes_ +=
          span.elements * options.state.BytesPerElement(bucket.dtype, own.slot_count);
    }
    store->own_.push_back(own);
  }
  for (std::vector<Piece>& pieces : store->pieces_) {
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
      return a.parameter_offset < b.parameter_offset;
    });
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
  for (int p = 0; is_new && p < space.parameter_count(); ++p) {
    for (int k = 0; k < options.scalar_slots; ++k) {
      store->ledger_->scalar_slot(p, k).store(options.initial_scalar_slots[space.group_of(p)][k],
                                              std::memory_order_relaxed);
    }
  }
  Arrays slots(store->memory_.slots);
  char* gradient = static_cast<char*>(store->reduced_gradients_.data());
  for (OwnBucket& own : store->own_) {
    const Bucket& bucket = *own.bucket;
    for (int s = 0; s < own.slot_count; ++s) {
      own.slots[s] = slots.Take(bucket, options.state.SlotDType(bucket.dtype));
      const double initial = options.slots[bucket.group][s].initial;
      if (is_new && initial != 0) Fill(own.slots[s], bucket.elements, initial);
    }
    if (options.state.HasMaster(bucket.dtype)) own.master = slots.Take(bucket, DType::kFloat32);
    if (gradient != nullptr) {
      const DType dtype = ArithmeticOf(bucket.dtype);
      own.reduced_gradient = Buffer(gradient, dtype);
      gradient += ArrayBytes(bucket, dtype);
    }
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

absl::optional<StepNumber> ShardStore::TryRead(int parameter, int slot, int64_t offset_elements,
                                               absl::Span<double> out) const {
  const int64_t end = offset_elements + static_cast<int64_t>(out.size());
  const std::vector<Piece>& pieces = pieces_[parameter];
  // The first piece that reaches beyond the offset.
  const auto first = std::upper_bound(pieces.begin(), pieces.end(), offset_elements,
                                      [](int64_t offset, const Piece& piece) {
                                        return offset < piece.parameter_offset + piece.elements;
                                      });
  std::vector<uint64_t> sequences;
  absl::optional<StepNumber> step;
  for (auto piece = first; piece != pieces.end() && piece->parameter_offset < end; ++piece) {
    const ShardLedger::Version& version = ledger_->version(piece->own);
    const uint64_t sequence = version.sequence.load(std::memory_order_acquire);
    if (sequence % 2 != 0) return absl::nullopt;
    const StepNumber of_piece = version.step.load(std::memory_order_relaxed);
    if (step.has_value() && *step != of_piece) return absl::nullopt;
    step = of_piece;
    sequences.push_back(sequence);
    const int64_t from = std::max(offset_elements, piece->parameter_offset);
    const int64_t to = std::min(end, piece->parameter_offset + piece->elements);
    const OwnBucket& own = own_[piece->own];
    const Buffer array = slot == kMaster ? own.master : own.slots[slot];
    RacyCopy(array.From(piece->bucket_offset + from - piece->parameter_offset), to - from,
             out.data() + (from - offset_elements));
  }
  auto piece = first;
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
