// How many threads of a process write checkpoints at once.
#ifndef OPTSHARD_SERVER_SHARD_SAVING_WRITER_SLOTS_H_
#define OPTSHARD_SERVER_SHARD_SAVING_WRITER_SLOTS_H_

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cancellation.h"

namespace optshard {

// Thread-safe. Outlives its slots.
class WriterSlots {
 public:
  explicit WriterSlots(int slots) : free_(slots) {}

  // One that is in use; its end gives it back.
  class Slot {
   public:
    explicit Slot(WriterSlots* from) : from_(from) {}
    Slot(Slot&& other) noexcept : from_(std::exchange(other.from_, nullptr)) {}
    Slot& operator=(Slot&&) = delete;
    ~Slot() {
      if (from_ == nullptr) return;
      absl::MutexLock lock(&from_->mutex_);
      ++from_->free_;
    }

   private:
    WriterSlots* from_;
  };

  // Waits for a free one: until then whoever called has written nothing. Calls `waiting` each time
  // that this has taken another `interval`. The reason of the cancellation.
  absl::StatusOr<Slot> Take(Cancellation& cancellation, absl::Duration interval,
                            const std::function<void()>& waiting) {
    const Cancellation::Callback wake(&cancellation, [this] { absl::MutexLock lock(&mutex_); });
    const auto ready = [this, &cancellation]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return free_ > 0 || !cancellation.reason().ok();
    };
    while (true) {
      {
        absl::MutexLock lock(&mutex_);
        const bool is_ready = mutex_.AwaitWithTimeout(absl::Condition(&ready), interval);
        absl::Status cancelled = cancellation.reason();
        if (!cancelled.ok()) return cancelled;
        if (is_ready) {
          --free_;
          return Slot(this);
        }
      }
      waiting();
    }
  }

 private:
  absl::Mutex mutex_;
  int free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SAVING_WRITER_SLOTS_H_
