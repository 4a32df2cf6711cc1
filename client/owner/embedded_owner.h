// A shard owner in the trainer's process, with the service that inspects it, and on rank 0 the
// job's coordinator if none is given.
#ifndef OPTSHARD_CLIENT_OWNER_EMBEDDED_OWNER_H_
#define OPTSHARD_CLIENT_OWNER_EMBEDDED_OWNER_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/owner/owner_link.h"
#include "client/owner/trainer_device.h"
#include "client/sharded_optimizer_options.h"
#include "common/optimizer_spec.h"
#include "server/update/trainer_update.h"

namespace optshard {

// On `device`, where the parameters are. `replaces` a broken owner of the rank in this process,
// which has made room. Errors as the constructor of ShardedOptimizer, and as OpenOwnerDevice. Stop
// leaves the job cleanly. A coordinator in this process goes on until all ranks have left, for the
// timeout at most.
absl::StatusOr<std::unique_ptr<OwnerLink>> StartEmbeddedOwner(
    const ShardedOptimizerOptions& options, const OptimizerSpec& spec,
    const std::vector<std::shared_ptr<TrainerUpdate>>& trainer_updates, bool replaces,
    const TrainerDevice& device = {});

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_EMBEDDED_OWNER_H_
