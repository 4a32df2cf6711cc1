#include "server/shard/state/shard_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/checked_math.h"
#include "server/shard/state/slot_memory.h"

namespace optshard {

ShardStore::State ShardStore::State::From(int64_t element) const {
  State part;
  std::transform(slots.begin(), slots.end(), part.slots.begin(),
                 [&](const SlotArray& slot) { return slot.From(element); });
  part.master = master.From(element);
  if (correction != nullptr) part.correction = correction + element;
  return part;
}

void ShardStore::BeginWrite(int own) {
  snapshots_->BeginWrite(own, ledger_->version(own).sequence);
}

void ShardStore::WriteInPieces(int own, absl::FunctionRef<std::vector<MemoryRange>()> announce,
                               absl::FunctionRef<void(const BlockPieces*)> write) {
  snapshots_->Write(own, ledger_->version(own).sequence, announce, write);
}

void ShardStore::EndWrite(int own, StepNumber step) {
  ledger_->version(own).step.store(step, std::memory_order_relaxed);
  ledger_->version(own).sequence.fetch_add(1, std::memory_order_release);
}

void ShardStore::MarkUnchanged(int own, StepNumber step) {
  ledger_->version(own).step.store(step, std::memory_order_relaxed);
}

void ShardStore::SetStep(StepNumber step) {
  for (size_t own = 0; own < own_.size(); ++own) {
    BeginWrite(static_cast<int>(own));
    EndWrite(static_cast<int>(own), step);
  }
  ledger_->counts_version().sequence.fetch_add(1, std::memory_order_acq_rel);
  ledger_->counts_version().step.store(step, std::memory_order_relaxed);
  ledger_->counts_version().sequence.fetch_add(1, std::memory_order_release);
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

SlotArray ShardStore::ArrayOf(const State& state, int slot) {
  return slot == kMaster ? SlotArray(state.master) : state.slots[slot];
}

void ShardStore::WritePieces(
    int parameter, int slot, int64_t offset_elements, int64_t elements,
    absl::FunctionRef<void(const State& state, int64_t within, int64_t given, int64_t count)>
        write) {
  const int64_t end = offset_elements + elements;
  for (const Piece& piece : PiecesFrom(parameter, slot, offset_elements)) {
    if (piece.parameter_offset >= end) break;
    const int64_t from = std::max(offset_elements, piece.parameter_offset);
    const int64_t to = std::min(end, piece.parameter_offset + piece.elements);
    BeginWrite(piece.own);
    write(own_[piece.own].states[piece.span], from - piece.parameter_offset, from - offset_elements,
          to - from);
    EndWrite(piece.own, ledger_->version(piece.own).step.load(std::memory_order_relaxed));
  }
}

absl::Status ShardStore::Write(int parameter, int slot, int64_t offset_elements,
                               absl::Span<const double> values) {
  if (device_access_ != nullptr) return WriteOnDevice(parameter, slot, offset_elements, values);
  WritePieces(parameter, slot, offset_elements, static_cast<int64_t>(values.size()),
              [&](const State& state, int64_t within, int64_t given, int64_t count) {
                const double* const from = values.data() + given;
                if (slot == kCorrection) {
                  std::copy_n(from, count, state.correction + within);
                } else {
                  WriteSlot(ArrayOf(state, slot), within, count, from);
                }
              });
  return absl::OkStatus();
}

void ShardStore::WriteBytes(int parameter, int slot, int64_t offset_elements, int64_t elements,
                            const char* values) {
  WritePieces(parameter, slot, offset_elements, elements,
              [&](const State& state, int64_t within, int64_t given, int64_t count) {
                const Buffer to = ArrayOf(state, slot).plain();
                const auto size = static_cast<int64_t>(SizeOf(to.dtype()));
                std::memcpy(to.From(within).data(), values + given * size, count * size);
              });
}

char* ShardStore::BytesAt(int parameter, int slot, int64_t offset_elements,
                          int64_t elements) const {
  const absl::Span<const Piece> pieces = PiecesFrom(parameter, slot, offset_elements);
  if (pieces.empty()) return nullptr;
  const Piece& piece = pieces[0];
  const int64_t within = offset_elements - piece.parameter_offset;
  if (within < 0 || elements > piece.elements - within) return nullptr;
  const State& state = own_[piece.own].states[piece.span];
  return static_cast<char*>(ArrayOf(state, slot).plain().From(within).data());
}

void ShardStore::WriteCount(int parameter, StepNumber count, const ScalarSlots& scalar_slots) {
  ledger_->counts_version().sequence.fetch_add(1, std::memory_order_acq_rel);
  ledger_->step_count(parameter).store(count, std::memory_order_relaxed);
  for (int k = 0; k < scalar_slot_count_; ++k) {
    ledger_->scalar_slot(parameter, k).store(scalar_slots[k], std::memory_order_relaxed);
  }
  ledger_->counts_version().sequence.fetch_add(1, std::memory_order_release);
}

absl::Status ShardStore::Take(ShardStore& alike, absl::Time deadline) {
  // Memory changes hands as a whole, beyond the borders of buckets.
  for (size_t own = 0; own < own_.size(); ++own) BeginWrite(static_cast<int>(own));
  if (device_access_ == nullptr) {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i].TakeSlots(alike.memory_[i]);
  } else {
    absl::Status taken = device_access_->Write(deadline, [&](HostTransfer& transfer) {
      absl::Status written;
      for (size_t i = 0; i < memory_.size() && written.ok(); ++i) {
        written = transfer.Write(memory_[i].slots, alike.memory_[i].slots, memory_[i].bytes.slots,
                                 deadline);
      }
      return written;
    });
    if (!taken.ok()) return taken;
  }
  for (size_t own = 0; own < own_.size(); ++own) {
    const StepNumber step =
        ledger_->version(static_cast<int>(own)).step.load(std::memory_order_relaxed);
    EndWrite(static_cast<int>(own), step);
  }
  for (int p = 0; p < parameter_count_; ++p) {
    WriteCount(p, alike.step_count(p), alike.scalar_slots(p));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::optional<StepNumber>> ShardStore::TryRead(int parameter, int slot,
                                                               int64_t offset_elements,
                                                               absl::Span<double> out) const {
  if (device_access_ != nullptr) return TryReadOnDevice(parameter, slot, offset_elements, out);
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
