// A step's progress in memory that others read: other threads, or a process that takes over.
#ifndef OPTSHARD_SERVER_SHARD_STATE_SHARED_PROGRESS_H_
#define OPTSHARD_SERVER_SHARD_STATE_SHARED_PROGRESS_H_

#include <atomic>
#include <cstdint>

#include "common/membership/membership.h"

namespace optshard {

// One thread writes, any reads. A process may be
// killed between any two instructions of Store: a step changes the first word alone and a skipped
// call the second alone, so that what is left is the progress before the call or after it.
class SharedProgress {
 public:
  void Store(const StepProgress& progress) {
    skipped_.store(progress.skipped, std::memory_order_release);
    step_.store(progress.finished << kOutcomeBits | static_cast<uint64_t>(progress.outcome),
                std::memory_order_release);
  }

  StepProgress Load() const {
    const uint64_t step = step_.load(std::memory_order_acquire);
    const auto outcome = static_cast<StepOutcome>(step & ((1 << kOutcomeBits) - 1));
    return {step >> kOutcomeBits, outcome, skipped_.load(std::memory_order_acquire)};
  }

 private:
  static constexpr int kOutcomeBits = 8;

  std::atomic<uint64_t> step_;  // finished and outcome, which change at once
  std::atomic<uint64_t> skipped_;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share them");

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STATE_SHARED_PROGRESS_H_
