// How a group's optimizer grows while its ranks work.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/plan.h"
#include "server/coordinator/group.h"

namespace optshard {

void Group::ProposeGrowth(Rank rank, Generation generation, const GrowthProposal& proposal,
                          absl::Time wait_until, GrowthRounds::Callback callback, absl::Time now) {
  absl::Status usable = shutdown_.ok() ? failure_ : shutdown_;
  if (usable.ok() && (state_ != GroupState::kActive || !members_[rank].present())) {
    usable = absl::FailedPreconditionError(
        absl::StrCat("optimizer \"", optimizer_, "\" is ", NameOf(state_), ", rank ", rank, " is ",
                     NameOf(members_[rank].state), ": no param group can be added"));
  }
  // A retry of a call that has made the next generation has its answer.
  if (usable.ok() && generation != generation_ && !growth_.Knows(rank, proposal)) {
    usable = errors::StaleGeneration(generation, generation_);
  }
  if (!usable.ok()) {
    deferred_.push_back([callback = std::move(callback), usable] { callback(usable); });
    return;
  }
  members_[rank].pulse.last_heard = now;
  const bool was_open = growth_.open();
  const GrowthRounds::Outcome outcome =
      growth_.Propose(rank, proposal, agreement_.spec(), generation_ + 1, now, wait_until,
                      std::move(callback), deferred_);
  if (!was_open && growth_.open()) {
    // Those that have left will not come, nor will those that are in a step.
    for (Rank other = 0; other < options_.world_size; ++other) {
      if (!growth_.WaitsFor(other)) continue;
      Member& member = members_[other];
      if (member.state == MemberState::kLeft) {
        growth_.Left(other, member.progress, deferred_);
        continue;
      }
      MemberEvent event;
      event.kind = MemberEvent::Kind::kProgressWanted;
      Send(member, std::move(event));
    }
  }
  if (outcome == GrowthRounds::Outcome::kNone) return;
  if (outcome == GrowthRounds::Outcome::kCompared) {
    // The next generation's planes meet under keys of its own.
    rendezvous_->Fail(errors::StaleGeneration(generation_, generation_ + 1), deferred_);
    rendezvous_ = std::make_unique<RendezvousStore>(options_.world_size);
    return;
  }
  agreement_.Grow(*growth_.compared());
  ++generation_;
  const OptimizerSpec& spec = agreement_.spec();
  absl::StatusOr<Plan> plan =
      MakePlan(generation_, spec.space, spec.policy, spec.world_size, ready_->plan.tree);
  if (!plan.ok()) return Fail(plan.status());
  auto ready = std::make_shared<PlanReady>(*ready_);
  ready->plan = *std::move(plan);
  ready->plan_digest = ready->plan.Digest();
  ready_ = std::move(ready);
}

}  // namespace optshard
