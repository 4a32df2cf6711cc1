// Ends waits early, from another thread.
#ifndef OPTSHARD_COMMON_CANCELLATION_H_
#define OPTSHARD_COMMON_CANCELLATION_H_

#include <functional>
#include <list>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace optshard {

// Thread-safe. Outlives its callbacks.
class Cancellation {
 public:
  class Callback;

  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  // What can be cancelled ends with `reason`, now and later. Runs the callbacks, in this thread and
  // without a lock. Only the first call counts.
  void Cancel(const absl::Status& reason);

  // OK until Cancel.
  absl::Status reason() const;

  // Waits for Cancel. Whether it came within `timeout`.
  bool WaitFor(absl::Duration timeout) const;

 private:
  bool Cancelled() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !reason_.ok(); }

  mutable absl::Mutex mutex_;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
  std::list<Callback*> callbacks_ ABSL_GUARDED_BY(mutex_);
  const Callback* running_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

// While it lives, its function runs on Cancel: once, at the latest when the object's end returns.
// Where Cancel came before, the constructor runs it. The function must not end this object.
class Cancellation::Callback {
 public:
  // `cancellation` may be null: then it never runs.
  Callback(Cancellation* cancellation, std::function<void()> function);
  ~Callback();

  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;

 private:
  friend class Cancellation;

  Cancellation* const cancellation_;
  const std::function<void()> function_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CANCELLATION_H_
