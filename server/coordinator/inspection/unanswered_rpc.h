// Owners that have not answered, as the replies of JobInspection name them.
#ifndef OPTSHARD_SERVER_COORDINATOR_INSPECTION_UNANSWERED_RPC_H_
#define OPTSHARD_SERVER_COORDINATOR_INSPECTION_UNANSWERED_RPC_H_

#include "absl/status/status.h"
#include "proto/optshard/v1/inspection.pb.h"
#include "server/coordinator/inspection/owner_calls_rpc.h"

namespace optshard {

// A long error is cut: a reply may have hundreds of them.
v1::UnansweredOwner Unanswered(const OwnerToAsk& owner, const absl::Status& error);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_INSPECTION_UNANSWERED_RPC_H_
