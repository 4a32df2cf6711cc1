// JobInspection.ReadValues.
#ifndef OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_VALUES_RPC_H_
#define OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_VALUES_RPC_H_

#include "absl/status/statusor.h"
#include "proto/optshard/v1/inspection.pb.h"
#include "server/coordinator/inspection/job_view.h"
#include "server/coordinator/inspection/owner_calls_rpc.h"

namespace optshard {

// Wants a view with a plan. Asks the owners one after the other: few have parts of so few values.
// Errors as inspection.proto says, and UNAVAILABLE naming the owner that does not answer.
absl::StatusOr<v1::ReadValuesResponse> ReadValues(const JobView& view,
                                                  const v1::ReadValuesRequest& request,
                                                  const CallPatience& patience);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_VALUES_RPC_H_
