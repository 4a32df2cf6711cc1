// The member's end of the control plane over gRPC.
#ifndef OPTSHARD_COMMON_MEMBERSHIP_COORDINATOR_CLIENT_RPC_H_
#define OPTSHARD_COMMON_MEMBERSHIP_COORDINATOR_CLIENT_RPC_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/membership/coordinator_client.h"

namespace optshard {

// Of the coordinator at HOST:PORT, which need not be there yet: Join tries until its deadline.
// INVALID_ARGUMENT for an empty address. Every session has a connection of its own, whose end tells
// the coordinator that the member is gone. Losing the coordinator later is logged and does not fail
// the group; the sessions go on trying to reach it.
absl::StatusOr<std::unique_ptr<CoordinatorClient>> MakeCoordinatorClient(
    const std::string& address);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_MEMBERSHIP_COORDINATOR_CLIENT_RPC_H_
