// The shard owners over gRPC: the ShardSaving service at each owner's address.
#ifndef OPTSHARD_SERVER_COORDINATOR_SAVING_SAVING_OWNERS_RPC_H_
#define OPTSHARD_SERVER_COORDINATOR_SAVING_SAVING_OWNERS_RPC_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/saving/saving_owners.h"

namespace optshard {

// Holds no thread while it waits for an owner. Thread-safe.
class SavingOwnersRpc final : public SavingOwners {
 public:
  // `coordinator` outlives it. `open_patience`: how long an owner waits for the end of a step.
  SavingOwnersRpc(Coordinator* coordinator, absl::Duration open_patience)
      : coordinator_(*coordinator), open_patience_(open_patience) {}

  // FAILED_PRECONDITION also where a rank has no address. Errors of the calls are the owner's, with
  // its address; errors::PeerLost where it cannot be reached.
  absl::StatusOr<std::vector<std::unique_ptr<OwnerSave>>> Connect(
      const std::string& optimizer) override;

 private:
  Coordinator& coordinator_;
  const absl::Duration open_patience_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_SAVING_SAVING_OWNERS_RPC_H_
