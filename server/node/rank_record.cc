#include "server/node/rank_record.h"

#include <atomic>
#include <cstdint>

#include "common/cache_line.h"

namespace optshard {

struct alignas(kCacheLineBytes) RankRecord::Head {
  std::atomic<Incarnation> last_incarnation;
  std::atomic<int32_t> trainer_pid;
  std::atomic<uint64_t> trainer_start_ticks;
  std::atomic<uint64_t> load_token;
};

RankRecord::RankRecord(void* memory)
    : memory_(memory), blobs_(static_cast<char*>(memory) + sizeof(Head), kMaxBlobBytes) {}

size_t RankRecord::Bytes() { return sizeof(Head) + StepBytes::Bytes(kMaxBlobBytes); }

RankRecord::Head& RankRecord::head() const { return *static_cast<Head*>(memory_); }

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

uint64_t RankRecord::load_token() const {
  return head().load_token.load(std::memory_order_acquire);
}

void RankRecord::SetLoadToken(uint64_t token) {
  head().load_token.store(token, std::memory_order_release);
}

void RankRecord::OfferBlob(StepNumber step, absl::string_view blob) {
  absl::MutexLock lock(&mutex_);
  blobs_.Offer(step, blob);
}

void RankRecord::OfferNoBlob(StepNumber step) {
  absl::MutexLock lock(&mutex_);
  blobs_.OfferNothing(step);
}

void RankRecord::MoveOffer(StepNumber step, StepNumber finished) {
  absl::MutexLock lock(&mutex_);
  blobs_.MoveOffer(step, finished);
}

void RankRecord::ReplaceBlobs(StepNumber finished, absl::string_view blob) {
  absl::MutexLock lock(&mutex_);
  blobs_.Clear();
  blobs_.Offer(finished, blob);
}

StepBytes::Kept RankRecord::Blob(StepNumber finished) const {
  absl::MutexLock lock(&mutex_);
  return blobs_.After(finished);
}

}  // namespace optshard
