// How ranks join a group: the first time, in the place of one that was lost, or anew after a
// failure.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/incarnation.h"
#include "common/plan.h"
#include "server/coordinator/admission.h"
#include "server/coordinator/group.h"
#include "server/coordinator/losses.h"
#include "server/coordinator/recovery_point.h"

namespace optshard {

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
  // What a broken owner had has ended with it.
  ready->is_torn = absl::c_any_of(members_, [](const Member& member) {
    const JoinRequest& request = member.request;
    return (request.resumes.has_value() && request.resumes->is_torn) ||
           (request.begins_anew.has_value() && request.begins_anew->replaces);
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

}  // namespace optshard
