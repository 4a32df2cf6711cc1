#include "server/node/rank_record.h"

#include <atomic>
#include <cstdint>
#include <cstring>

#include "common/attach/attachment_rpc.h"
#include "common/errors.h"

namespace optshard {
namespace {

constexpr size_t kLineBytes = 64;
constexpr int kSlots = 2;  // the one that counts, and the one that is offered

}  // namespace

struct alignas(kLineBytes) RankRecord::Head {
  std::atomic<uint64_t> synced;
  std::atomic<Incarnation> last_incarnation;
  std::atomic<uint64_t> request_bytes;
  std::atomic<int32_t> trainer_pid;
  std::atomic<uint64_t> trainer_start_ticks;
};

struct alignas(kLineBytes) RankRecord::Slot {
  std::atomic<StepNumber> step;  // 0: empty
  uint64_t bytes;
  alignas(kLineBytes) char blob[kMaxBlobBytes];
};

size_t RankRecord::Bytes(const AttachRequest& first) {
  return sizeof(Head) + kSlots * sizeof(Slot) + EncodeAttachRequest(first).size();
}

RankRecord::Head& RankRecord::head() const { return *static_cast<Head*>(memory_); }

RankRecord::Slot& RankRecord::slot(int index) const {
  return reinterpret_cast<Slot*>(static_cast<char*>(memory_) + sizeof(Head))[index];
}

char* RankRecord::request() const { return reinterpret_cast<char*>(&slot(kSlots)); }

void RankRecord::SetFirstRequest(const AttachRequest& first) {
  const std::string bytes = EncodeAttachRequest(first);
  std::memcpy(request(), bytes.data(), bytes.size());
  head().request_bytes.store(bytes.size(), std::memory_order_release);
}

absl::StatusOr<AttachRequest> RankRecord::FirstRequest() const {
  const uint64_t bytes = head().request_bytes.load(std::memory_order_acquire);
  absl::StatusOr<AttachRequest> request_of_first =
      DecodeAttachRequest(absl::string_view(request(), bytes));
  if (request_of_first.ok()) return request_of_first;
  return errors::WithContext(request_of_first.status(), "the record of a rank's first trainer");
}

bool RankRecord::synced() const { return head().synced.load(std::memory_order_acquire) != 0; }

void RankRecord::SetSynced() { head().synced.store(1, std::memory_order_release); }

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
  Slot& offered = slot(Current(step - 1) == 0 ? 1 : 0);
  offered.step.store(0, std::memory_order_relaxed);
  // Stores are seen in program order by whoever comes after a process that was killed.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(offered.blob, blob.data(), blob.size());
  offered.bytes = blob.size();
  offered.step.store(step, std::memory_order_release);
}

void RankRecord::OfferNoBlob(StepNumber step) {
  for (int i = 0; i < kSlots; ++i) {
    if (slot(i).step.load(std::memory_order_relaxed) >= step) {
      slot(i).step.store(0, std::memory_order_release);
    }
  }
}

void RankRecord::MoveOffer(StepNumber step, StepNumber finished) {
  const int offered = Current(step);
  if (offered < 0 || slot(offered).step.load(std::memory_order_relaxed) != step) return;
  // In this order: one of them always counts.
  slot(offered).step.store(finished, std::memory_order_release);
  slot(1 - offered).step.store(0, std::memory_order_release);
}

void RankRecord::ReplaceBlobs(StepNumber finished, absl::string_view blob) {
  OfferNoBlob(0);
  OfferBlob(finished, blob);
}

StepBlob RankRecord::Blob(StepNumber finished) const {
  StepBlob blob;
  const int current = Current(finished);
  if (current < 0) return blob;
  const Slot& kept = slot(current);
  blob.step = kept.step.load(std::memory_order_relaxed);
  blob.bytes.assign(kept.blob, kept.bytes);
  return blob;
}

}  // namespace optshard
