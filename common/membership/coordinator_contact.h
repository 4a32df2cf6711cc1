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

  // `lease` is how long the coordinator may be silent: as long as it allows a member.
  CoordinatorContact(absl::Duration lease, absl::Time now) : lease_(lease), last_answer_(now) {}

  // The coordinator answered a call; an error that it made is an answer, too.
  void Answered(absl::Time now) {
    absl::MutexLock lock(&mutex_);
    last_answer_ = now;
    refused_since_.reset();
  }

  // A call failed in transport. `unavailable`: it could not be made. Otherwise it was not answered
  // in time. Returns whether this is the first failure since the last answer.
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
