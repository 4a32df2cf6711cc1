// JobInspection.ListSteps.
#ifndef OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_STEPS_RPC_H_
#define OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_STEPS_RPC_H_

#include "absl/status/statusor.h"
#include "proto/optshard/v1/inspection.pb.h"
#include "server/coordinator/inspection/job_view.h"
#include "server/coordinator/inspection/owner_calls_rpc.h"

namespace optshard {

// Wants a view with a plan. INVALID_ARGUMENT for ranks that the job has not, for more than 16 of
// them, and for a negative number of steps.
absl::StatusOr<v1::ListStepsResponse> ListSteps(const JobView& view,
                                                const v1::ListStepsRequest& request,
                                                const CallPatience& patience);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_STEPS_RPC_H_
