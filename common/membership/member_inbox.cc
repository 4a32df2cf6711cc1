#include "common/membership/member_inbox.h"

#include <utility>

namespace optshard {

void MemberInbox::OnFailure(std::function<void(const absl::Status&)> callback) {
  absl::Status failure;
  {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) {
      on_failure_ = std::move(callback);
      return;
    }
    failure = failure_;
  }
  callback(failure);
}

void MemberInbox::Deliver(const MemberEvent& event) {
  {
    absl::MutexLock lock(&mutex_);
    if (event.sequence <= last_sequence_) return;
    last_sequence_ = event.sequence;
    if (event.kind == MemberEvent::Kind::kProgressWanted) return;
    if (event.kind == MemberEvent::Kind::kPlanReady) {
      plan_ = event;
      return;
    }
  }
  DeliverFailure(event.failure);
}

void MemberInbox::DeliverFailure(const absl::Status& failure) {
  std::function<void(const absl::Status&)> callback;
  {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok() || failure.ok()) return;
    failure_ = failure;
    callback = std::exchange(on_failure_, nullptr);
    if (!callback) return;
    calling_ = true;
  }
  callback(failure);
  absl::MutexLock lock(&mutex_);
  calling_ = false;
}

void MemberInbox::EndCallbacks() {
  absl::MutexLock lock(&mutex_);
  on_failure_ = nullptr;
  mutex_.Await(absl::Condition(this, &MemberInbox::Idle));
}

uint64_t MemberInbox::last_sequence() const {
  absl::MutexLock lock(&mutex_);
  return last_sequence_;
}

absl::Status MemberInbox::failure() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

absl::optional<absl::StatusOr<MemberEvent>> MemberInbox::WaitForPlan(absl::Duration timeout) const {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(this, &MemberInbox::PlanFailureOrEnd), timeout);
  if (!failure_.ok()) return absl::StatusOr<MemberEvent>(failure_);
  if (plan_.has_value()) return absl::StatusOr<MemberEvent>(*plan_);
  return absl::nullopt;
}

void MemberInbox::EndWaitForPlan() {
  absl::MutexLock lock(&mutex_);
  wait_for_plan_ended_ = true;
}

absl::optional<absl::Status> MemberInbox::WaitForFailure(absl::Duration timeout) const {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(this, &MemberInbox::Failed), timeout);
  if (!failure_.ok()) return failure_;
  return absl::nullopt;
}

}  // namespace optshard
