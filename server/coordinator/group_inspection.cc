// What others may know of a group.
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/group_rule.h"
#include "server/coordinator/group.h"

namespace optshard {

absl::Status Group::CheckHasPlan() const {
  if (generation_ > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("optimizer \"", optimizer_, "\" waits for ",
                                                    missing_, " of ", options_.world_size,
                                                    " ranks; ask again once all have joined"));
}

absl::StatusOr<OwnerPage> Group::Owners(Rank first) const {
  absl::Status has_plan = CheckHasPlan();
  if (!has_plan.ok()) return has_plan;
  return OwnersFrom(first, members_, generation_);
}

absl::StatusOr<OptimizerPlan> Group::PlanOf() const {
  absl::Status has_plan = CheckHasPlan();
  if (!has_plan.ok()) return has_plan;
  return OptimizerPlan{agreement_.spec(), ready_};
}

GroupStatus Group::Status(absl::Time now) const {
  GroupStatus status;
  status.optimizer = optimizer_;
  status.state = state_;
  status.generation = generation_;
  status.world_size = options_.world_size;
  if (agreement_.begun()) {
    const OptimizerSpec& spec = agreement_.spec();
    status.rules = RulesText(spec.rules);
    status.policy = spec.policy;
    status.parameter_count = spec.space.parameter_count();
    status.total_elements = spec.space.total_elements();
  }
  status.failure = failure_;
  status.torn = state_ == GroupState::kFailed && IsTorn(members_);
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    status.members.push_back(StatusOf(members_[rank], static_cast<Rank>(rank), now));
  }
  return status;
}

}  // namespace optshard
