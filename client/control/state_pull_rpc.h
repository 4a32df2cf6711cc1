// Reads the state of shard owners over RPC, from all of them at once.
#ifndef OPTSHARD_CLIENT_CONTROL_STATE_PULL_RPC_H_
#define OPTSHARD_CLIENT_CONTROL_STATE_PULL_RPC_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/control/state_destination.h"
#include "common/cancellation.h"
#include "common/hyperparameters.h"
#include "common/ids.h"

namespace optshard {

struct StateOwnerAddress {
  Rank rank = 0;
  std::string address;  // HOST:PORT of its ShardOwner service
};

struct StatePullOptions {
  std::string job;  // empty: whatever job the owners are of
  std::string optimizer = "default";
  // Whether owners keep what steps change meanwhile. Without it they need no memory, but a step
  // that begins meanwhile makes the reading begin again.
  bool keep_copies = true;
  // Also the parameters of what each owner owns, as slot kParameterPart.
  bool parameters = false;
  // Also the hyperparameters of the step, from the first owner.
  bool hyperparameters = false;
  absl::Duration timeout = absl::Seconds(60);
  // Called each time that more has come, from any thread, several at once; must not block.
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
  Cancellation* cancellation = nullptr;  // ends the call with its reason; null: none
};

// Whose state has come.
struct PulledStep {
  StepNumber step = 0;
  Generation generation = 0;
  int64_t bytes = 0;  // of all that the owners have
  // By param group, where they were asked for; of owners of an older version none.
  std::vector<Hyperparameters> hyperparameters;
};

// Copies what all these owners have to where `destination` says, each byte once. It is the state
// of one step, the same of all owners, also at full speed: they open a snapshot together
// (server/shard/snapshot/agreed_snapshots.h). Where that fails because param groups were just added
// or a step has changed what was not kept, all are read again. They are all the owners of the job
// that vote, or one of them. After an error the destination has got anything. Thread-safe.
//   DEADLINE_EXCEEDED  naming the owners that have not answered, or the steps at which they were
//                      read the last time
//   UNAVAILABLE        naming an owner that cannot be reached or has left its job
//   NOT_FOUND          something else is at its address
//   INTERNAL           an owner sends what no owner sends
//   others             as the ShardOwner service says, naming the owner, or the destination
absl::StatusOr<PulledStep> PullState(absl::Span<const StateOwnerAddress> owners,
                                     StateDestination& destination,
                                     const StatePullOptions& options);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_CONTROL_STATE_PULL_RPC_H_
