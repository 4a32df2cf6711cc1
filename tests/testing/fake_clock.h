// A clock that stands still until a test moves it.
#ifndef OPTSHARD_TESTS_TESTING_FAKE_CLOCK_H_
#define OPTSHARD_TESTS_TESTING_FAKE_CLOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace optshard {

// Thread-safe.
class FakeClock final : public Clock {
 public:
  FakeClock() = default;
  explicit FakeClock(absl::Time start) : now_(start) {}

  absl::Time Now() const override {
    absl::MutexLock lock(&mutex_);
    return now_;
  }

  // A negative step counts as none: a Clock is monotonic.
  void Advance(absl::Duration step) {
    absl::MutexLock lock(&mutex_);
    if (step > absl::ZeroDuration()) now_ += step;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch() + absl::Hours(1000);
};

}  // namespace optshard

#endif  // OPTSHARD_TESTS_TESTING_FAKE_CLOCK_H_
