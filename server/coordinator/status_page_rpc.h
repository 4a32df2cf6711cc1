// Coordinator.GetStatus: a page of a job's members.
#ifndef OPTSHARD_SERVER_COORDINATOR_STATUS_PAGE_RPC_H_
#define OPTSHARD_SERVER_COORDINATOR_STATUS_PAGE_RPC_H_

#include "absl/status/statusor.h"
#include "common/membership/membership.h"
#include "proto/optshard/v1/coordinator.pb.h"

namespace optshard {

// `status` has all members of the optimizers that are asked for; the page has a part of them, and
// the summaries are of all. INVALID_ARGUMENT for a negative number or a foreign page token.
absl::StatusOr<v1::JobStatus> StatusPage(const JobStatus& status,
                                         const v1::GetStatusRequest& request);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_STATUS_PAGE_RPC_H_
