// Starts or finds the shard owner that a trainer's options ask for.
#ifndef OPTSHARD_CLIENT_OWNER_OWNER_CHOICE_H_
#define OPTSHARD_CLIENT_OWNER_OWNER_CHOICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/owner/owner_link.h"
#include "client/sharded_optimizer_options.h"
#include "common/optimizer_spec.h"

namespace optshard {

// INVALID_ARGUMENT where attach is neither "embedded" nor "unix:PATH"; else errors as
// StartEmbeddedOwner or AttachedOwner::Attach.
absl::StatusOr<std::unique_ptr<OwnerLink>> StartOwner(const ShardedOptimizerOptions& given,
                                                      const OptimizerSpec& spec);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_OWNER_CHOICE_H_
