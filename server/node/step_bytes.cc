#include "server/node/step_bytes.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "common/cache_line.h"
#include "common/fatal.h"

namespace optshard {
namespace {

constexpr int kSlots = 2;  // the one that counts, and the one that is offered

}  // namespace

struct alignas(kCacheLineBytes) StepBytes::Slot {
  std::atomic<StepNumber> step;  // 0: empty
  uint64_t size;

  char* bytes() { return reinterpret_cast<char*>(this + 1); }

  static size_t Stride(size_t most) { return sizeof(Slot) + WholeLines(most); }
};

size_t StepBytes::Bytes(size_t most) { return kSlots * Slot::Stride(most); }

StepBytes::StepBytes(void* memory, size_t most) : memory_(memory), most_(most) {}

StepBytes::Slot& StepBytes::slot(int index) const {
  return *reinterpret_cast<Slot*>(static_cast<char*>(memory_) +
                                  static_cast<size_t>(index) * Slot::Stride(most_));
}

int StepBytes::Current(StepNumber finished) const {
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

void StepBytes::Offer(StepNumber step, absl::string_view bytes) {
  if (bytes.size() > most_) Fatal("%d bytes to keep with a step, of %d", bytes.size(), most_);
  Slot& offered = slot(Current(step - 1) == 0 ? 1 : 0);
  offered.step.store(0, std::memory_order_relaxed);
  // Stores are seen in program order by whoever comes after a process that was killed.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (!bytes.empty()) std::memcpy(offered.bytes(), bytes.data(), bytes.size());
  offered.size = bytes.size();
  offered.step.store(step, std::memory_order_release);
}

void StepBytes::OfferNothing(StepNumber step) {
  for (int i = 0; i < kSlots; ++i) {
    if (slot(i).step.load(std::memory_order_relaxed) >= step) {
      slot(i).step.store(0, std::memory_order_release);
    }
  }
}

void StepBytes::MoveOffer(StepNumber step, StepNumber finished) {
  const int offered = Current(step);
  if (offered < 0 || slot(offered).step.load(std::memory_order_relaxed) != step) return;
  // In this order: one of them always counts.
  slot(offered).step.store(finished, std::memory_order_release);
  slot(1 - offered).step.store(0, std::memory_order_release);
}

StepBytes::Kept StepBytes::After(StepNumber finished) const {
  Kept kept;
  const int current = Current(finished);
  if (current < 0) return kept;
  Slot& of = slot(current);
  kept.step = of.step.load(std::memory_order_relaxed);
  kept.bytes.assign(of.bytes(), std::min<uint64_t>(of.size, most_));
  return kept;
}

}  // namespace optshard
