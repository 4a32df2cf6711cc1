#include "server/shard/state/shard_ledger.h"

#include "server/shard/state/shared_progress.h"

namespace optshard {
namespace {

constexpr size_t kLineBytes = 64;

}  // namespace

struct alignas(kLineBytes) ShardLedger::Head {
  std::atomic<Generation> generation;  // 0: none has begun
  SharedProgress progress;
};

size_t ShardLedger::Bytes(int parameters, int own_buckets, int scalar_slots) {
  return sizeof(Head) + (1 + static_cast<size_t>(own_buckets)) * sizeof(Version) +
         static_cast<size_t>(parameters) *
             (sizeof(std::atomic<StepNumber>) +
              static_cast<size_t>(scalar_slots) * sizeof(std::atomic<double>));
}

absl::optional<KeptState> ShardLedger::Read(const void* memory) {
  const Head* const head = static_cast<const Head*>(memory);
  const Generation generation = head->generation.load(std::memory_order_acquire);
  if (generation == 0) return absl::nullopt;
  return KeptState{generation, head->progress.Load()};
}

ShardLedger::ShardLedger(void* memory, int parameters, int own_buckets, int scalar_slots)
    : head_(static_cast<Head*>(memory)),
      versions_(reinterpret_cast<Version*>(static_cast<char*>(memory) + sizeof(Head))),
      step_counts_(reinterpret_cast<std::atomic<StepNumber>*>(versions_ + 1 + own_buckets)),
      scalar_slots_(reinterpret_cast<std::atomic<double>*>(step_counts_ + parameters)),
      version_count_(1 + own_buckets),
      scalar_slot_count_(scalar_slots) {}

void ShardLedger::Begin(Generation generation, const StepProgress& progress) {
  SetProgress(progress);
  head_->generation.store(generation, std::memory_order_release);
}

void ShardLedger::SetProgress(const StepProgress& progress) {
  head_->progress.Store(progress);
  // What is written after it in the program is written after it.
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void ShardLedger::EndInterruptedWrites() {
  for (int v = 0; v < version_count_; ++v) {
    std::atomic<uint64_t>& sequence = versions_[v].sequence;
    if (sequence.load(std::memory_order_relaxed) % 2 != 0) {
      sequence.fetch_add(1, std::memory_order_release);
    }
  }
}

void ShardLedger::EndReads() {
  for (int v = 0; v < version_count_; ++v) {
    std::atomic<uint64_t>& sequence = versions_[v].sequence;
    // Acquire keeps the writes that follow behind it.
    if (sequence.load(std::memory_order_relaxed) % 2 == 0) {
      sequence.fetch_add(1, std::memory_order_acq_rel);
    }
  }
}

StepProgress ShardLedger::progress() const { return head_->progress.Load(); }

}  // namespace optshard
