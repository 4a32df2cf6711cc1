#include "server/coordinator/group.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errors.h"
#include "common/group_rule.h"
#include "common/plan.h"
#include "server/coordinator/admission.h"
#include "server/coordinator/losses.h"
#include "server/coordinator/recovery_point.h"

namespace optshard {
Group::Group(std::string optimizer, GroupOptions options)
    : optimizer_(std::move(optimizer)),
      options_(std::move(options)),
      members_(options_.world_size),
      missing_(options_.world_size),
      joins_(options_.world_size),
      rendezvous_(std::make_unique<RendezvousStore>(options_.world_size)),
      growth_(optimizer_, options_.world_size) {}

std::unique_ptr<Group> Group::After(const Group& failed) {
  auto group = std::make_unique<Group>(failed.optimizer_, failed.options_);
  for (size_t rank = 0; rank < failed.members_.size(); ++rank) {
    group->members_[rank].incarnation = failed.members_[rank].incarnation;
  }
  group->last_generation_ = std::max(failed.last_generation_, failed.generation_);
  group->resumable_ = true;
  group->agreement_ = Agreement::After(failed.agreement_);
  return group;
}

bool Group::KnowsRequest(const JoinRequest& request) const {
  const JoinResults::Answer* first = joins_.Find(request.rank, request.request_id);
  // One that was lost before it had its answer comes again with its state, or without.
  const bool comes_again = request.resumes.has_value() || request.begins_anew.has_value();
  return first != nullptr && !(comes_again && IsOfLostMember(request.rank, *first));
}

bool Group::IsOfLostMember(Rank rank, const JoinResults::Answer& answer) const {
  const Member& member = members_[rank];
  return answer.ok() && answer->incarnation == member.incarnation &&
         member.state == MemberState::kLost;
}

bool Group::GivesWayTo(const JoinRequest& request, absl::Time now) {
  Member& holder = members_[request.rank];
  if (request.begins_anew.has_value()) {
    const absl::optional<BeginsAnew>& held = holder.request.begins_anew;
    const bool is_own = holder.present() && held.has_value() && request.begins_anew->replaces &&
                        held->process == request.begins_anew->process;
    if (holder.present() && !is_own) return false;
    if (state_ == GroupState::kActive && is_own) {
      last_gone_ = now;
      Fail(MarkReplaced(holder, request.rank, request.pid));
    }
    return state_ == GroupState::kFailed && resumable_;
  }
  if (!request.resumes.has_value()) return false;
  // While ranks gather, who begins at step 0 has no state yet that could have outlived it.
  const bool holder_is_gone = state_ == GroupState::kActive
                                  ? holder.state != MemberState::kMissing
                                  : state_ == GroupState::kForming && holder.present() &&
                                        holder.request.resumes.has_value();
  if (holder_is_gone) {
    last_gone_ = now;
    Fail(MarkReplaced(holder, request.rank, request.pid));
  }
  return state_ == GroupState::kFailed && resumable_;
}

absl::StatusOr<JoinReply> Group::Join(const JoinRequest& request, absl::Time now) {
  if (!shutdown_.ok()) return shutdown_;
  Member& member = members_[request.rank];
  const JoinResults::Answer* first = joins_.Find(request.rank, request.request_id);
  // A member that was lost is told below why the group has failed.
  if (first != nullptr && !IsOfLostMember(request.rank, *first)) {
    if (member.present()) member.pulse.last_heard = now;
    return *first;
  }
  // Who comes to a group that disagreed before it was complete is told what the others were told.
  if (state_ == GroupState::kFailed && generation_ == 0 && errors::IsRanksDisagree(failure_) &&
      member.state == MemberState::kMissing) {
    return failure_;
  }
  const absl::Status open = CheckOpen(request, state_, failure_);
  if (!open.ok()) return open;
  if (member.state != MemberState::kMissing) return AlreadyTaken(request, member, now);
  if (agreement_.HasWhatWasPrepared(request)) {
    return errors::StaleGeneration(request.resumes->generation,
                                   std::max(last_generation_, request.resumes->generation + 1));
  }
  if (!KnowsSpecOf(request)) return AskForSpec(now);

  if (!agreement_.begun()) first_joined_ = now;
  const absl::Status agreed = agreement_.Agree(request);
  if (!agreed.ok()) {
    joins_.Record(request.rank, request.request_id, agreed);
    Fail(agreed);
    return agreed;
  }

  if (request.resumes.has_value()) {
    last_generation_ = std::max(last_generation_, request.resumes->generation);
    resumable_ = true;
  }
  const Incarnation incarnation =
      std::max(member.incarnation + 1, FirstIncarnation(options_.epoch));
  member = Member();
  member.state = MemberState::kJoined;
  member.incarnation = incarnation;
  member.request = request;
  member.request.spec = OptimizerSpec();
  member.pulse.last_heard = now;
  --missing_;
  const JoinReply reply = ReplyTo(incarnation);
  joins_.Record(request.rank, request.request_id, reply);
  if (missing_ == 0) Activate();
  return reply;
}

JoinReply Group::ReplyTo(Incarnation incarnation) const {
  JoinReply reply;
  reply.incarnation = incarnation;
  reply.lease = options_.liveness.lease;
  reply.heartbeat_period = HeartbeatPeriod(options_.liveness.lease, options_.world_size);
  reply.host_rank = options_.host_rank;
  return reply;
}

bool Group::LeftWhileForming(const MemberId& member) const {
  if (member.rank < 0 || member.rank >= options_.world_size) return false;
  const Member& present = members_[member.rank];
  return joins_.Admitted(member.rank, member.incarnation) &&
         (present.state == MemberState::kMissing || present.incarnation != member.incarnation);
}

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

void Group::Activate() {
  std::vector<std::string> nodes;
  std::vector<absl::optional<KeptState>> kept;
  for (const Member& member : members_) {
    nodes.push_back(member.request.node);
    kept.push_back(member.request.resumes);
  }
  const absl::StatusOr<StepProgress> recovery_point = FindRecoveryPoint(kept);
  if (!recovery_point.ok()) {
    Fail(errors::WithContext(recovery_point.status(),
                             absl::StrCat("optimizer \"", optimizer_, "\" cannot go on")));
    return;
  }
  const OptimizerSpec& spec = agreement_.spec();
  absl::StatusOr<Plan> plan = MakePlan(last_generation_ + 1, spec.space, spec.policy, nodes);
  if (!plan.ok()) {
    Fail(errors::WithContext(plan.status(),
                             absl::StrCat("optimizer \"", optimizer_, "\" has no plan")));
    return;
  }
  generation_ = first_generation_ = plan->generation;
  const auto ready = std::make_shared<PlanReady>();
  ready->plan = *std::move(plan);
  ready->plan_digest = ready->plan.Digest();
  ready->finished = recovery_point->finished;
  ready->skipped = recovery_point->skipped;
  ready->lacks_values = absl::c_any_of(kept, [](const absl::optional<KeptState>& state) {
    return state.has_value() && state->lacks_values;
  });
  // A rank may come back without it: its server was killed before it could write it down.
  ready->is_torn = absl::c_any_of(kept, [](const absl::optional<KeptState>& state) {
    return state.has_value() && state->is_torn;
  });
  // What a broken owner had has ended with it.
  ready->is_torn |= absl::c_any_of(members_, [](const Member& member) {
    return member.request.begins_anew.has_value() && member.request.begins_anew->replaces;
  });
  ready_ = ready;
  resumable_ = true;
  state_ = GroupState::kActive;
  // Keys are those of a generation. A wait for one of no generation yet must end, or it would hold
  // up the coordinator's shutdown.
  rendezvous_->Fail(errors::StaleGeneration(0, generation_), deferred_);
  rendezvous_ = std::make_unique<RendezvousStore>(options_.world_size);
  for (Member& member : members_) {
    member.state = MemberState::kActive;
    MemberEvent event;
    event.kind = MemberEvent::Kind::kPlanReady;
    event.ready = ready;
    Send(member, std::move(event));
  }
}

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
