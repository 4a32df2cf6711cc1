// Which exchange a step uses: by where the memory is, and what the plane can reach.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_EXCHANGE_CHOICE_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_EXCHANGE_CHOICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/shard/engine/step_exchange.h"

namespace optshard {

//   RESOURCE_EXHAUSTED
//   INTERNAL       a plan that a rule cannot follow
//   UNIMPLEMENTED  what is not done on a device
// and what the device and the executor's factory return.
absl::StatusOr<std::unique_ptr<StepExchange>> MakeExchange(const StepContext& context);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_EXCHANGE_CHOICE_H_
