// Reads the whole state from the shard owners, while all ranks are in one call.
#ifndef OPTSHARD_CLIENT_OWNER_STATE_COLLECTION_H_
#define OPTSHARD_CLIENT_OWNER_STATE_COLLECTION_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "client/owner/owner_link.h"
#include "client/owner/rank_exchange.h"
#include "client/owner/state_layout.h"
#include "client/state_dict.h"
#include "common/ids.h"

namespace optshard {

struct CollectionOptions {
  OwnerLink* owner = nullptr;
  RankExchange* exchange = nullptr;
  const StateLayout* layout = nullptr;  // what is pointed to outlives the call
  std::string job;
  std::string optimizer;
  Rank to = 0;  // or kFromEveryRank
};

// The "state" of a state dict on rank `to`, or with kFromEveryRank on all; nothing on the others. A
// rank that wants it pulls from all owners at once, over RPC; from its own where that is in this
// process, directly. The others wait. All ranks call it, between the same steps. Beside the state
// itself nothing takes memory that grows with it. nullopt on all ranks, and nothing has been read,
// where some owner cannot be reached by a rank that wants its state. Errors as RankExchange::Agree.
absl::StatusOr<absl::optional<std::map<int64_t, StateValues>>> CollectState(
    const CollectionOptions& options);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_STATE_COLLECTION_H_
