// The shard owners over gRPC: the ShardSaving service at each owner's address.
#ifndef OPTSHARD_SERVER_COORDINATOR_SAVING_SAVING_OWNERS_RPC_H_
#define OPTSHARD_SERVER_COORDINATOR_SAVING_SAVING_OWNERS_RPC_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/kept_channels_rpc.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/saving/checkpoint_driver.h"
#include "server/coordinator/saving/saving_owners.h"

namespace optshard {

// Holds no thread while it waits for an owner. Thread-safe.
class SavingOwnersRpc final : public SavingOwners {
 public:
  // `coordinator` outlives it. Of the driver's options: how long an owner waits for the end of a
  // step, and how long the driver may let it wait for what it is to do next.
  SavingOwnersRpc(Coordinator* coordinator, const CheckpointDriver::Options& driver)
      : coordinator_(*coordinator),
        open_patience_(driver.open_timeout),
        silence_(driver.longest_silence()) {}

  // FAILED_PRECONDITION also where a rank has no address. Errors of the calls are the owner's, with
  // its address; errors::PeerLost where it cannot be reached.
  absl::StatusOr<std::vector<std::unique_ptr<OwnerSave>>> Connect(
      const std::string& optimizer, absl::optional<StepNumber> at_step, bool is_model) override;

  absl::StatusOr<std::vector<SafetensorsTensor>> ModelTensors(const std::string& optimizer,
                                                              Generation generation) override;

  Generation generation(const std::string& optimizer) override;

 private:
  Coordinator& coordinator_;
  const absl::Duration open_patience_;
  const absl::Duration silence_;
  // As many as saves of small jobs need, which are short enough to notice a connection.
  KeptChannels channels_{64};
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_SAVING_SAVING_OWNERS_RPC_H_
