#include "server/node/rank_record.h"

#include <atomic>
#include <cstdint>
#include <cstring>

namespace optshard {
namespace {

constexpr size_t kLineBytes = 64;
constexpr int kSlots = 2;  // the one that counts, and the one that is offered

}  // namespace

struct alignas(kLineBytes) RankRecord::Head {
  std::atomic<Incarnation> last_incarnation;
  std::atomic<int32_t> trainer_pid;
  std::atomic<uint64_t> trainer_start_ticks;
};

struct alignas(kLineBytes) RankRecord::Slot {
  std::atomic<StepNumber> step;  // 0: empty
  uint64_t bytes;
  alignas(kLineBytes) char blob[kMaxBlobBytes];
};

size_t RankRecord::Bytes() { return sizeof(Head) + kSlots * sizeof(Slot); }

RankRecord::Head& RankRecord::head() const { return *static_cast<Head*>(memory_); }

RankRecord::Slot& RankRecord::slot(int index) const {
  return reinterpret_cast<Slot*>(static_cast<char*>(memory_) + sizeof(Head))[index];
}

RankRecord::Trainer RankRecord::trainer() const {
  Trainer trainer;
  trainer.pid = head().trainer_pid.load(std::memory_order_acquire);
  trainer.start_ticks = head().trainer_start_ticks.load(std::memory_order_relaxed);
  return trainer;
}

void RankRecord::SetTrainer(const Trainer& trainer) {
  // Nobody in between, should this process end here.
  head().trainer_pid.store(0, std::memory_order_release);
  head().trainer_start_ticks.store(trainer.start_ticks, std::memory_order_release);
  head().trainer_pid.store(trainer.pid, std::memory_order_release);
}

Incarnation RankRecord::NextIncarnation() {
  return head().last_incarnation.fetch_add(1, std::memory_order_acq_rel) + 1;
}

int RankRecord::Current(StepNumber finished) const {
  int current = -1;
  StepNumber latest = 0;
  for (int i = 0; i < kSlots; ++i) {
    const StepNumber step = slot(i).step.load(std::memory_order_acquire);
    if (step <= latest || step > finished) continue;
    latest = step;
    current = i;
  }
  return current;
}

void RankRecord::OfferBlob(StepNumber step, absl::string_view blob) {
  absl::MutexLock lock(&blobs_);
  Offer(step, blob);
}

void RankRecord::Offer(StepNumber step, absl::string_view blob) {
  Slot& offered = slot(Current(step - 1) == 0 ? 1 : 0);
  offered.step.store(0, std::memory_order_relaxed);
  // Stores are seen in program order by whoever comes after a process that was killed.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(offered.blob, blob.data(), blob.size());
  offered.bytes = blob.size();
  offered.step.store(step, std::memory_order_release);
}

void RankRecord::OfferNoBlob(StepNumber step) {
  absl::MutexLock lock(&blobs_);
  DropFrom(step);
}

void RankRecord::DropFrom(StepNumber step) {
  for (int i = 0; i < kSlots; ++i) {
    if (slot(i).step.load(std::memory_order_relaxed) >= step) {
      slot(i).step.store(0, std::memory_order_release);
    }
  }
}

void RankRecord::MoveOffer(StepNumber step, StepNumber finished) {
  absl::MutexLock lock(&blobs_);
  const int offered = Current(step);
  if (offered < 0 || slot(offered).step.load(std::memory_order_relaxed) != step) return;
  // In this order: one of them always counts.
  slot(offered).step.store(finished, std::memory_order_release);
  slot(1 - offered).step.store(0, std::memory_order_release);
}

void RankRecord::ReplaceBlobs(StepNumber finished, absl::string_view blob) {
  absl::MutexLock lock(&blobs_);
  DropFrom(0);
  Offer(finished, blob);
}

StepBlob RankRecord::Blob(StepNumber finished) const {
  StepBlob blob;
  absl::MutexLock lock(&blobs_);
  const int current = Current(finished);
  if (current < 0) return blob;
  const Slot& kept = slot(current);
  blob.step = kept.step.load(std::memory_order_relaxed);
  blob.bytes.assign(kept.blob, kept.bytes);
  return blob;
}

}  // namespace optshard
