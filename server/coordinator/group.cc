#include "server/coordinator/group.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errors.h"
#include "server/coordinator/admission.h"
#include "server/coordinator/losses.h"

namespace optshard {

Group::Group(std::string optimizer, GroupOptions options)
    : optimizer_(std::move(optimizer)),
      options_(std::move(options)),
      members_(options_.world_size),
      missing_(options_.world_size),
      joins_(options_.world_size),
      rendezvous_(std::make_unique<RendezvousStore>(options_.world_size)),
      growth_(optimizer_, options_.world_size) {}

absl::Status Group::CheckIncarnation(const MemberId& member) const {
  if (!shutdown_.ok()) return shutdown_;
  if (member.rank < 0 || member.rank >= options_.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", member.rank, " is not in 0..",
                                                   options_.world_size - 1, " (optimizer \"",
                                                   optimizer_, "\")"));
  }
  const Member& present = members_[member.rank];
  if (present.state == MemberState::kMissing || present.incarnation != member.incarnation) {
    return errors::StaleIncarnation(
        member.rank, member.incarnation,
        present.state == MemberState::kMissing ? 0 : present.incarnation);
  }
  return absl::OkStatus();
}

absl::Status Group::CheckGeneration(Generation generation) const {
  if (generation == generation_) return absl::OkStatus();
  if (first_generation_ > 0 && generation >= first_generation_ && generation < generation_) {
    return absl::OkStatus();
  }
  return errors::StaleGeneration(generation, generation_);
}

WatchId Group::OpenWatch(Rank rank, std::function<void()> wake, absl::Time now) {
  Member& member = members_[rank];
  // The stream that is replaced finds out when it looks.
  if (member.wake) deferred_.push_back(std::move(member.wake));
  member.wake = std::move(wake);
  member.watch = ++last_watch_;
  member.pulse.broken_session.reset();
  member.pulse.last_heard = now;
  return member.watch;
}

void Group::CloseWatch(Rank rank, WatchId watch, absl::Duration grace, absl::Time now) {
  Member& member = members_[rank];
  if (member.watch != watch) return;
  member.wake = nullptr;
  // After a failure we end the stream ourselves; then only the lease tells who is alive.
  if (member.present() && state_ != GroupState::kFailed) {
    member.pulse.broken_session = BrokenSession{now, grace};
  }
}

absl::StatusOr<WatchEvents> Group::ReadEvents(Rank rank, WatchId watch,
                                              uint64_t after_sequence) const {
  if (!shutdown_.ok()) return shutdown_;
  const Member& member = members_[rank];
  if (member.watch != watch) {
    return absl::AbortedError(
        absl::StrCat("another event stream of rank ", rank, " took the place of this one"));
  }
  WatchEvents result;
  for (const MemberEvent& event : member.events) {
    if (event.sequence > after_sequence) result.events.push_back(event);
  }
  result.last = state_ == GroupState::kFailed || !member.present();
  return result;
}

void Group::Record(Member& member, const StepProgress& progress, absl::Time now, bool final) {
  member.pulse.last_heard = now;
  // Calls overtake one another: a heartbeat may have been sent before what has come already. A rank
  // that has left has said its last, what is final is followed by nothing that is not, and what a
  // step tore stays torn.
  if (member.state == MemberState::kLeft || (member.progress_is_final && !final)) return;
  if (!IsOpen(member.progress.outcome)) member.progress = progress;
  member.progress_is_final |= final;
}

void Group::Heartbeat(Rank rank, const StepProgress& progress, absl::Time now) {
  const bool final = state_ == GroupState::kFailed && progress.outcome != StepOutcome::kInStep;
  Record(members_[rank], progress, now, final);
  growth_.Heard(rank, progress, deferred_);
  LookForAbandoned();
}

absl::Status Group::ReportFailure(Rank rank, const StepProgress& progress, Rank suspect,
                                  const absl::Status& observed, absl::Time now) {
  if (suspect < -1 || suspect >= options_.world_size || observed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank, " reports a failure with suspect ", suspect, " (expected -1..",
        options_.world_size - 1, ") and status ", observed.ToString(), " (expected an error)"));
  }
  Record(members_[rank], progress, now, true);
  if (suspect == rank) suspect = -1;
  const bool repeated = absl::c_any_of(
      suspicions_, [rank](const Suspicion& suspicion) { return suspicion.reporter == rank; });
  if (state_ == GroupState::kFailed || state_ == GroupState::kFinished || repeated) {
    return absl::OkStatus();
  }
  suspicions_.push_back({rank, suspect, observed, now});
  Decide(now);
  return absl::OkStatus();
}

void Group::Leave(Rank rank, const StepProgress& progress, absl::Time now) {
  Member& member = members_[rank];
  if (!member.present()) return;
  Record(member, progress, now, true);
  last_gone_ = now;
  if (state_ == GroupState::kForming) {
    // The others go on waiting, for somebody else under this rank.
    member.state = MemberState::kMissing;
    ++missing_;
    if (!HasMembers()) agreement_.BeginAnew();
  } else {
    member.state = MemberState::kLeft;
    ++left_;
  }
  if (member.wake) deferred_.push_back(std::move(member.wake));
  member.wake = nullptr;
  if (state_ != GroupState::kActive) return;
  if (left_ == options_.world_size) {
    state_ = GroupState::kFinished;
    rendezvous_->Fail(absl::FailedPreconditionError(
                          absl::StrCat("all ranks have left optimizer \"", optimizer_, "\"")),
                      deferred_);
    return;
  }
  growth_.Left(rank, member.progress, deferred_);
  LookForAbandoned();
}

absl::Status Group::PutRendezvous(Rank rank, absl::string_view key, absl::string_view value,
                                  absl::Time now) {
  members_[rank].pulse.last_heard = now;
  return rendezvous_->Put(rank, key, value, deferred_);
}

void Group::GetRendezvous(absl::string_view key, absl::Time deadline,
                          RendezvousStore::GetCallback callback) {
  rendezvous_->Get(key, deadline, std::move(callback), deferred_);
}

void Group::Tick(absl::Time now) {
  rendezvous_->Expire(now, deferred_);
  growth_.Tick(now, deferred_);
  LookForLost(now);
  if (state_ == GroupState::kForming && agreement_.begun() &&
      now - first_joined_ >= options_.join_timeout) {
    const std::vector<Rank> missing = MissingRanks(members_);
    Fail(errors::PeersTimedOut(
        missing,
        absl::StrFormat("joining optimizer \"%s\" of job \"%s\" (%d of %d ranks joined "
                        "within %s)",
                        optimizer_, options_.job, options_.world_size - missing.size(),
                        options_.world_size, absl::FormatDuration(options_.join_timeout))));
  }
  Decide(now);
}

void Group::Shutdown(const absl::Status& reason) {
  shutdown_ = reason;
  for (Member& member : members_) {
    if (member.wake) deferred_.push_back(member.wake);
  }
  rendezvous_->Fail(reason, deferred_);
  growth_.Fail(reason, deferred_);
}

bool Group::HasMembers() const {
  return absl::c_any_of(members_, [](const Member& member) { return member.present(); });
}

bool Group::Done(absl::Time now) const {
  if (HasMembers()) return false;
  if (state_ == GroupState::kFinished) return true;
  return !resumable_ || now - last_gone_ >= options_.resume_grace;
}

Deferred Group::TakeDeferred() { return std::exchange(deferred_, {}); }

void Group::Fail(const absl::Status& failure) {
  state_ = GroupState::kFailed;
  failure_ = failure;
  for (Member& member : members_) {
    if (member.state == MemberState::kMissing || member.state == MemberState::kLeft) continue;
    MemberEvent event;
    event.kind = MemberEvent::Kind::kGroupFailed;
    event.failure = failure;
    Send(member, std::move(event));
  }
  rendezvous_->Fail(failure, deferred_);
  growth_.Fail(failure, deferred_);
}

void Group::Send(Member& member, MemberEvent event) {
  event.sequence = member.events.size() + 1;
  member.events.push_back(std::move(event));
  if (member.wake) deferred_.push_back(member.wake);
}

void Group::LookForLost(absl::Time now) {
  const absl::optional<absl::Status> loss =
      MarkLost(absl::MakeSpan(members_), optimizer_, options_.liveness, now);
  if (!loss.has_value()) return;
  last_gone_ = now;
  if (state_ != GroupState::kFailed) Fail(*loss);
}

void Group::LookForAbandoned() {
  if (state_ != GroupState::kActive || left_ == 0) return;
  const absl::optional<absl::Status> abandoned = FindAbandoned(members_);
  if (abandoned.has_value()) Fail(*abandoned);
}

void Group::Decide(absl::Time now) {
  if (suspicions_.empty()) return;
  if (state_ == GroupState::kFailed || state_ == GroupState::kFinished) return;
  const absl::optional<absl::Status> failure =
      AttributeFailure(suspicions_, EvidenceOf(members_), options_.attribution_grace, now);
  if (failure.has_value()) Fail(*failure);
}

}  // namespace optshard
