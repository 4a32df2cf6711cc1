#include "server/shard/engine/exchange_choice.h"

#include <utility>

#include "server/shard/engine/bucket_updater.h"
#include "server/shard/engine/device_exchange.h"
#include "server/shard/engine/direct_exchange.h"
#include "server/shard/engine/hierarchical_exchange.h"
#include "server/shard/engine/message_exchange.h"

namespace optshard {

absl::StatusOr<std::unique_ptr<StepExchange>> MakeExchange(const StepContext& context) {
  if (context.device != nullptr) return DeviceExchange::Create(context);
  absl::StatusOr<std::unique_ptr<BucketUpdater>> updater = BucketUpdater::Create(context);
  if (!updater.ok()) return updater.status();
  if (context.plane != nullptr && context.plane->peer_replicas() != nullptr) {
    return std::make_unique<DirectExchange>(context, *std::move(updater));
  }
  if (context.plane != nullptr && context.plane->node() != nullptr) {
    return HierarchicalExchange::Create(context, *std::move(updater));
  }
  return MessageExchange::Create(context, *std::move(updater));
}

}  // namespace optshard
