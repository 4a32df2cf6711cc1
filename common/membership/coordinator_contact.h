// When a coordinator that does not answer counts as gone.
#ifndef OPTSHARD_COMMON_MEMBERSHIP_COORDINATOR_CONTACT_H_
#define OPTSHARD_COMMON_MEMBERSHIP_COORDINATOR_CONTACT_H_

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace optshard {

// Thread-safe. Knows no clock: each call says what time it is.
class CoordinatorContact {
 public:
  // A process that was killed refuses connections; allow for a network that hiccups.
  static constexpr absl::Duration kRefusedFor = absl::Seconds(1);

  // `lease` is how long it may be silent without refusing: as long as it would allow a member.
  CoordinatorContact(absl::Duration lease, absl::Time now) : lease_(lease), last_answer_(now) {}

  // It answered a call, be it with an error of its own.
  void Answered(absl::Time now) {
    absl::MutexLock lock(&mutex_);
    last_answer_ = now;
    refused_since_.reset();
  }

  // A call failed in transport: `unavailable` if it could not be made, else it was not answered in
  // its time. Whether that is news: there has been an answer since the last failure.
  bool Failed(bool unavailable, absl::Time now) {
    absl::MutexLock lock(&mutex_);
    const bool news = last_failure_ <= last_answer_;
    last_failure_ = now;
    if (unavailable && !refused_since_.has_value()) refused_since_ = now;
    return news;
  }

  bool Gone(absl::Time now) const {
    absl::MutexLock lock(&mutex_);
    // Silence alone may be our own: a process that was stopped has asked nothing meanwhile.
    return (now - last_answer_ >= lease_ && last_failure_ > last_answer_) ||
           (refused_since_.has_value() && now - *refused_since_ >= kRefusedFor);
  }

 private:
  const absl::Duration lease_;
  mutable absl::Mutex mutex_;
  absl::Time last_answer_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_failure_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::optional<absl::Time> refused_since_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_MEMBERSHIP_COORDINATOR_CONTACT_H_
