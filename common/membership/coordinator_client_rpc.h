// The member's end of the control plane over gRPC.
#ifndef OPTSHARD_COMMON_MEMBERSHIP_COORDINATOR_CLIENT_RPC_H_
#define OPTSHARD_COMMON_MEMBERSHIP_COORDINATOR_CLIENT_RPC_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/membership/coordinator_client.h"

namespace optshard {

// A client of the coordinator at HOST:PORT. The coordinator need not run yet: Join tries until its
// deadline. INVALID_ARGUMENT for an empty address. Every session has a connection of its own: when
// it closes, the coordinator knows that the member is gone. When the coordinator is lost later, a
// session logs that and goes on trying to reach it; the group does not fail.
absl::StatusOr<std::unique_ptr<CoordinatorClient>> MakeCoordinatorClient(
    const std::string& address);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_MEMBERSHIP_COORDINATOR_CLIENT_RPC_H_
