// Starts or finds the shard owner that a trainer's options ask for.
#ifndef OPTSHARD_CLIENT_OWNER_OWNER_CHOICE_H_
#define OPTSHARD_CLIENT_OWNER_OWNER_CHOICE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/owner/owner_link.h"
#include "client/owner/trainer_device.h"
#include "client/sharded_optimizer_options.h"
#include "common/optimizer_spec.h"
#include "server/update/trainer_update.h"

namespace optshard {

// `trainer_updates` as in ShardOwner::Options, `replaces` and `device` as StartEmbeddedOwner.
// INVALID_ARGUMENT where attach is neither "embedded" nor "unix:PATH", or is the latter and there
// is an update of the trainer's own; else errors as StartEmbeddedOwner or AttachedOwner::Attach.
absl::StatusOr<std::unique_ptr<OwnerLink>> StartOwner(
    const ShardedOptimizerOptions& given, const OptimizerSpec& spec,
    const std::vector<std::shared_ptr<TrainerUpdate>>& trainer_updates = {}, bool replaces = false,
    const TrainerDevice& device = {});

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_OWNER_CHOICE_H_
