// Which exchange a step uses: the plane says what it can reach.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_EXCHANGE_CHOICE_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_EXCHANGE_CHOICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/shard/engine/bucket_updater.h"
#include "server/shard/engine/step_exchange.h"

namespace optshard {

// RESOURCE_EXHAUSTED.
absl::StatusOr<std::unique_ptr<StepExchange>> MakeExchange(const StepContext& context,
                                                           std::unique_ptr<BucketUpdater> updater);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_EXCHANGE_CHOICE_H_
