// JobInspection.DescribeJob.
#ifndef OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_DESCRIPTION_RPC_H_
#define OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_DESCRIPTION_RPC_H_

#include "absl/status/statusor.h"
#include "proto/optshard/v1/inspection.pb.h"
#include "server/coordinator/inspection/job_view.h"
#include "server/coordinator/inspection/owner_calls_rpc.h"

namespace optshard {

// INVALID_ARGUMENT for a negative page size or a foreign page token.
absl::StatusOr<v1::JobDescription> DescribeJob(const JobView& view,
                                               const v1::DescribeJobRequest& request,
                                               const CallPatience& patience);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_DESCRIPTION_RPC_H_
