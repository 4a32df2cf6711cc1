// JobInspection.ListParameters, GetStatistics and ListGroups.
#ifndef OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_PARAMETERS_RPC_H_
#define OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_PARAMETERS_RPC_H_

#include "absl/status/statusor.h"
#include "proto/optshard/v1/inspection.pb.h"
#include "server/coordinator/inspection/job_view.h"
#include "server/coordinator/inspection/owner_calls_rpc.h"

namespace optshard {

// All want a view with a plan. INVALID_ARGUMENT for a negative page size, a foreign page token, or
// a pattern that is too long.

absl::StatusOr<v1::ListJobParametersResponse> ListJobParameters(
    const JobView& view, const v1::ListJobParametersRequest& request, const CallPatience& patience);

absl::StatusOr<v1::GetStatisticsResponse> GetStatistics(const JobView& view,
                                                        const v1::GetStatisticsRequest& request,
                                                        const CallPatience& patience);

// Hyperparameters are those that the first rank tells which answers; UNAVAILABLE where none of the
// first few does.
absl::StatusOr<v1::ListGroupsResponse> ListGroups(const JobView& view,
                                                  const v1::ListGroupsRequest& request,
                                                  const CallPatience& patience);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_PARAMETERS_RPC_H_
