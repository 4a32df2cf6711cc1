// Lets a rank's steps go before what copies and writes its snapshots in the background.
#ifndef OPTSHARD_SERVER_SHARD_SNAPSHOT_RIGHT_OF_WAY_H_
#define OPTSHARD_SERVER_SHARD_SNAPSHOT_RIGHT_OF_WAY_H_

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace optshard {

// Whether a step is being applied. Ranks step together, so those of one host have it at the same
// time. Thread-safe.
class RightOfWay {
 public:
  // While it lives a step is being applied.
  class Taken {
   public:
    explicit Taken(RightOfWay& from) : from_(from) { from_.Set(true); }
    ~Taken() { from_.Set(false); }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;

   private:
    RightOfWay& from_;
  };

  bool is_taken() const { return is_taken_.load(std::memory_order_relaxed); }

  // Until it is not taken, for `longest` at most.
  void AwaitFree(absl::Duration longest) const {
    const auto is_free = [this] { return !is_taken(); };
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&is_free), longest);
  }

 private:
  void Set(bool taken) {
    absl::MutexLock lock(&mutex_);
    is_taken_.store(taken, std::memory_order_relaxed);
  }

  mutable absl::Mutex mutex_;
  std::atomic<bool> is_taken_{false};  // changes under mutex_
};

// Work in the background that gives way to steps. What only steps, without a pause, holds it up all
// the same only so long that it takes twice as long, and `grace`. Bound to a thread.
class GivingWay {
 public:
  static constexpr absl::Duration kGrace = absl::Milliseconds(500);

  explicit GivingWay(std::shared_ptr<const RightOfWay> to, absl::Duration grace = kGrace,
                     const Clock& clock = Clock::Monotonic())
      : to_(std::move(to)), grace_(grace), clock_(clock), begin_(clock.Now()) {}

  // Call it before each piece of the work, a millisecond of it or less. Waits for at most a second.
  void Wait() {
    if (!to_->is_taken()) return;
    const absl::Time start = clock_.Now();
    const absl::Duration worked = start - begin_ - waited_;
    const absl::Duration left = grace_ + worked - waited_;
    if (left <= absl::ZeroDuration()) return;
    to_->AwaitFree(std::min(left, kLongest));
    waited_ += clock_.Now() - start;
  }

 private:
  static constexpr absl::Duration kLongest = absl::Seconds(1);  // a cancellation waits for it

  const std::shared_ptr<const RightOfWay> to_;
  const absl::Duration grace_;
  const Clock& clock_;
  const absl::Time begin_;
  absl::Duration waited_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SNAPSHOT_RIGHT_OF_WAY_H_
