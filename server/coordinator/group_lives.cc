#include "server/coordinator/group_lives.h"

#include <iterator>
#include <utility>

namespace optshard {

GroupLives::GroupLives(std::string optimizer, GroupOptions options)
    : present_(std::make_unique<Group>(std::move(optimizer), std::move(options))) {}

absl::StatusOr<JoinReply> GroupLives::Join(const JoinRequest& request, absl::Time now) {
  if (present_->KnowsRequest(request)) return present_->Join(request, now);
  if (former_ != nullptr && former_->KnowsRequest(request)) return former_->Join(request, now);
  // Only a request whose spec is there begins another life.
  if ((request.resumes.has_value() || request.begins_anew.has_value()) &&
      !present_->KnowsSpecOf(request)) {
    return present_->AskForSpec(now);
  }
  if (present_->GivesWayTo(request, now)) {
    std::unique_ptr<Group> next = Group::After(*present_);
    former_ = std::exchange(present_, std::move(next));
  }
  return present_->Join(request, now);
}

absl::StatusOr<Group*> GroupLives::Find(const MemberId& caller) const {
  const absl::Status known = present_->CheckIncarnation(caller);
  if (known.ok()) return present_.get();
  if (former_ != nullptr && former_->CheckIncarnation(caller).ok()) return former_.get();
  return known;
}

bool GroupLives::LeftWhileForming(const MemberId& caller) const {
  return present_->LeftWhileForming(caller) ||
         (former_ != nullptr && former_->LeftWhileForming(caller));
}

void GroupLives::Tick(absl::Time now) {
  present_->Tick(now);
  if (former_ != nullptr) former_->Tick(now);
}

void GroupLives::Shutdown(const absl::Status& reason) {
  present_->Shutdown(reason);
  if (former_ != nullptr) former_->Shutdown(reason);
}

bool GroupLives::Done(absl::Time now) const {
  return present_->Done(now) && (former_ == nullptr || !former_->HasMembers());
}

Deferred GroupLives::TakeDeferred() {
  Deferred all = present_->TakeDeferred();
  if (former_ == nullptr) return all;
  Deferred more = former_->TakeDeferred();
  std::move(more.begin(), more.end(), std::back_inserter(all));
  return all;
}

}  // namespace optshard
