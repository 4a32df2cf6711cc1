// One optimizer of the job, as a call of inspection finds it.
#ifndef OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_VIEW_H_
#define OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_VIEW_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/membership/membership.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/inspection/job_plan.h"

namespace optshard {

// Thread-compatible value type.
struct JobView {
  std::string job;
  GroupStatus status;  // with all members
  // Null where not all ranks have joined yet.
  std::shared_ptr<const JobPlan> plan;

  const std::string& owner_address(Rank rank) const { return status.members[rank].owner_address; }

  // Names the shard owner that the request is for: another one at its address does not answer it.
  template <typename Request>
  void SetOwner(Rank rank, Request& request) const {
    request.set_optimizer(status.optimizer);
    request.set_rank(rank);
    request.set_job(job);
    request.set_incarnation(status.members[rank].incarnation);
  }
};

// Finds the optimizer; an empty name is the only one.
//   NOT_FOUND            there is no such optimizer; those that there are, are listed
//   INVALID_ARGUMENT     there are several, and none is named
//   FAILED_PRECONDITION  `needs_plan`, and not all ranks have joined yet
absl::StatusOr<JobView> OpenJobView(const Coordinator& coordinator, JobPlans& plans,
                                    absl::string_view optimizer, bool needs_plan);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_VIEW_H_
