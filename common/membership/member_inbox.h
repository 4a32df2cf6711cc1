// The events of a member that have arrived, and the waits for them.
#ifndef OPTSHARD_COMMON_MEMBERSHIP_MEMBER_INBOX_H_
#define OPTSHARD_COMMON_MEMBERSHIP_MEMBER_INBOX_H_

#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/membership/membership.h"

namespace optshard {

// Thread-safe.
class MemberInbox {
 public:
  // `callback` runs once, without a lock, in the thread that delivers the failure. Where the group
  // has failed already, it runs within this call.
  void OnFailure(std::function<void(const absl::Status&)> callback);

  // Forgets the callback. When this returns it does not run, nor will it. Not from the callback.
  void EndCallbacks();

  // An event whose sequence number has come before changes nothing, and so does kProgressWanted.
  void Deliver(const MemberEvent& event);

  // The group's failure, where it was not learnt from an event.
  void DeliverFailure(const absl::Status& failure);

  // The sequence number of the last event delivered: where a new stream resumes.
  uint64_t last_sequence() const;

  // OK as long as the group has not failed.
  absl::Status failure() const;

  // The plan's event, or the group's failure; nullopt after `timeout`, or once EndWaitForPlan has
  // been called.
  absl::optional<absl::StatusOr<MemberEvent>> WaitForPlan(absl::Duration timeout) const;

  void EndWaitForPlan();

  // The group's failure; nullopt after `timeout`.
  absl::optional<absl::Status> WaitForFailure(absl::Duration timeout) const;

 private:
  bool PlanFailureOrEnd() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return plan_.has_value() || !failure_.ok() || wait_for_plan_ended_;
  }
  bool Failed() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !failure_.ok(); }
  bool Idle() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !calling_; }

  mutable absl::Mutex mutex_;
  uint64_t last_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::optional<MemberEvent> plan_ ABSL_GUARDED_BY(mutex_);
  bool wait_for_plan_ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const absl::Status&)> on_failure_ ABSL_GUARDED_BY(mutex_);
  bool calling_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_MEMBERSHIP_MEMBER_INBOX_H_
