#include "server/shard/state/shard_ledger.h"

#include "common/cache_line.h"
#include "server/shard/state/shared_progress.h"

namespace optshard {

struct alignas(kCacheLineBytes) ShardLedger::Head {
  std::atomic<Generation> generation;  // 0: none has begun
  SharedProgress progress;
  std::atomic<Replacing> replacing;  // counts where the progress is kTorn
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

Replacing ShardLedger::ReadReplacing(const void* memory) {
  const Head* const head = static_cast<const Head*>(memory);
  return head->progress.Load().outcome == StepOutcome::kTorn
             ? head->replacing.load(std::memory_order_acquire)
             : Replacing::kNothing;
}

ShardLedger::ShardLedger(void* memory, int parameters, int own_buckets, int scalar_slots)
    : head_(static_cast<Head*>(memory)),
      versions_(reinterpret_cast<Version*>(static_cast<char*>(memory) + sizeof(Head))),
      step_counts_(reinterpret_cast<std::atomic<StepNumber>*>(versions_ + 1 + own_buckets)),
      scalar_slots_(reinterpret_cast<std::atomic<double>*>(step_counts_ + parameters)),
      version_count_(1 + own_buckets),
      scalar_slot_count_(scalar_slots) {}

void ShardLedger::Begin(Generation generation, const StepProgress& progress, Replacing replacing) {
  head_->replacing.store(replacing, std::memory_order_release);
  SetProgress(progress);
  head_->generation.store(generation, std::memory_order_release);
}

void ShardLedger::SetProgress(const StepProgress& progress) {
  head_->progress.Store(progress);
  // What is written after it in the program is written after it.
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void ShardLedger::SetReplacing(Replacing what) {
  StepProgress progress = this->progress();
  if (what == Replacing::kNothing) {
    progress.outcome = StepOutcome::kIdle;
    SetProgress(progress);
    head_->replacing.store(what, std::memory_order_release);
    return;
  }
  head_->replacing.store(what, std::memory_order_release);
  progress.outcome = StepOutcome::kTorn;
  SetProgress(progress);
}

Replacing ShardLedger::replacing() const { return ReadReplacing(head_); }

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
