// What snapshots of the store find where.
#include <utility>

#include "server/shard/state/device_slot_memory.h"
#include "server/shard/state/shard_store.h"

namespace optshard {
namespace {

void AddRanges(const SlotArray& array, int64_t elements, MemoryBlock* block) {
  for (const SlotBytes& part : BytesOf(array, elements)) {
    block->push_back({static_cast<const char*>(part.data), part.bytes});
  }
}

}  // namespace

std::vector<ShardStore::StoredPart> ShardStore::StoredParts() const {
  std::vector<StoredPart> parts;
  for (size_t own = 0; own < own_.size(); ++own) {
    int range = 0;
    for (size_t s = 0; s < own_[own].states.size(); ++s) {
      const State& state = own_[own].states[s];
      const BucketSpan& span = own_[own].bucket->spans[s];
      StoredPart part;
      part.parameter = span.parameter;
      part.own = static_cast<int>(own);
      const auto add = [&](int slot, const SlotArray& array, int64_t offset, int64_t elements) {
        part.slot = slot;
        part.array = array;
        part.range = range;
        part.offset_elements = offset;
        part.elements = elements;
        range += array.is_coded() ? 2 : 1;
        parts.push_back(part);
      };
      for (size_t k = 0; k < state.slots.size(); ++k) {
        if (!state.slots[k]) continue;
        const auto slot = static_cast<int>(k);
        const auto whole = whole_slots_.find({span.parameter, slot});
        if (whole != whole_slots_.end()) {
          add(slot, state.slots[k], 0, whole->second.elements);
        } else {
          add(slot, state.slots[k], span.parameter_offset_elements, span.elements);
        }
      }
      if (state.master) {
        add(kMaster, state.master, span.parameter_offset_elements, span.elements);
      }
      if (state.correction != nullptr) {
        add(kCorrection, SlotArray(), span.parameter_offset_elements, span.elements);
      }
    }
  }
  return parts;
}

void ShardStore::PlaceBlocks() {
  std::vector<MemoryBlock> blocks(own_.size());
  for (const StoredPart& part : StoredParts()) {
    MemoryBlock& block = blocks[part.own];
    if (part.slot != kCorrection) {
      AddRanges(part.array, part.elements, &block);
      continue;
    }
    const Piece& piece = PiecesFrom(part.parameter, part.slot, part.offset_elements).front();
    const int8_t* const correction = own_[piece.own].states[piece.span].correction;
    block.push_back(
        {reinterpret_cast<const char*>(correction), static_cast<size_t>(part.elements)});
  }
  std::vector<MemoryRange> on_device;
  for (const ShardMemory& memory : memory_) {
    if (options_.slot_device() == nullptr) break;
    on_device.push_back({static_cast<const char*>(memory.slots), memory.bytes.slots});
  }
  snapshots_ = std::make_unique<StateSnapshots>(std::move(blocks), std::move(on_device));
}

absl::optional<ShardStore::SnapshotCounts> ShardStore::TryReadCounts() const {
  const ShardLedger::Version& version = ledger_->counts_version();
  const uint64_t sequence = version.sequence.load(std::memory_order_acquire);
  if (sequence % 2 != 0) return absl::nullopt;
  SnapshotCounts counts;
  for (int p = 0; p < parameter_count_; ++p) {
    counts.step_counts.push_back(step_count(p));
    counts.scalar_slots.push_back(scalar_slots(p));
  }
  counts.step = version.step.load(std::memory_order_relaxed);
  if (version.sequence.fetch_add(0, std::memory_order_acq_rel) != sequence) return absl::nullopt;
  return counts;
}

absl::optional<ShardStore::SnapshotCounts> ShardStore::TryOpen(
    const std::shared_ptr<StateSnapshot>& snapshot) const {
  // A step says that it is being applied before it writes. So where the same step is the last one
  // before the snapshot is opened and once it is open, whatever is written later is copied before.
  // A step that ends in between may have written blocks while there was no snapshot to copy them.
  const StepProgress progress = ledger_->progress();
  if (progress.outcome != StepOutcome::kIdle) return absl::nullopt;
  snapshots_->Open(snapshot);
  absl::optional<SnapshotCounts> counts = TryReadCounts();
  for (size_t own = 0; counts.has_value() && own < own_.size(); ++own) {
    const ShardLedger::Version& version = ledger_->version(static_cast<int>(own));
    if (version.sequence.load(std::memory_order_acquire) % 2 != 0) counts.reset();
  }
  const StepProgress now = ledger_->progress();
  if (!counts.has_value() || now.outcome != StepOutcome::kIdle ||
      now.finished != progress.finished) {
    snapshots_->Close(snapshot.get());
    return absl::nullopt;
  }
  counts->step = progress.finished;
  return counts;
}

absl::optional<ShardStore::DeviceMoment> ShardStore::MomentOnDevice() const {
  const absl::optional<uint64_t> version = device_access_->version();
  // Until the next call the ledger says of a step that is under way what it says of a torn one.
  const bool has_step =
      ledger_->progress().outcome == StepOutcome::kIdle ||
      (ledger_->replacing() == Replacing::kNothing && device_access_->AreUnderWay());
  if (!version.has_value() || !has_step) return absl::nullopt;
  absl::optional<SnapshotCounts> counts = TryReadCounts();
  // Updates that are enqueued are counted afterwards.
  for (size_t own = 0; counts.has_value() && own < own_.size(); ++own) {
    const ShardLedger::Version& written = ledger_->version(static_cast<int>(own));
    if (written.sequence.load(std::memory_order_acquire) % 2 != 0 ||
        written.step.load(std::memory_order_relaxed) != counts->step) {
      counts.reset();
    }
  }
  if (!counts.has_value()) return absl::nullopt;
  return DeviceMoment{*std::move(counts), *version};
}

}  // namespace optshard
