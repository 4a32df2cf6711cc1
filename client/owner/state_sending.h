// How one rank's state dict gets to another rank's owner, where it is loaded for all.
#ifndef OPTSHARD_CLIENT_OWNER_STATE_SENDING_H_
#define OPTSHARD_CLIENT_OWNER_STATE_SENDING_H_

#include <set>
#include <utility>

#include "absl/status/status.h"
#include "client/owner/rank_exchange.h"
#include "client/owner/state_layout.h"
#include "client/state_dict.h"
#include "common/ids.h"
#include "server/shard/state/state_access.h"

namespace optshard {

// Thread-compatible. What is pointed to outlives the call.
struct StateSending {
  RankExchange* exchange = nullptr;
  const StateLayout* layout = nullptr;
  Rank from = 0;
  Rank to = 0;  // another one
};

using GivenSlots = std::set<std::pair<int, int>>;  // parameter, slot

// All ranks call it. What the checked dict of rank `from` has of the slots that rank `to` keeps is
// staged there, in `state`, where staging has begun; `given` gets which slots these are. The other
// ranks take part, and look at neither. No rank has more of it in memory than a window and, on rank
// `from`, one slot that is not dense. Errors on all ranks alike: the exchange's,
// StateAccess::Stage, RESOURCE_EXHAUSTED.
absl::Status SendState(const StateSending& sending, const StateDict& checked, StateAccess* state,
                       GivenSlots* given);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_STATE_SENDING_H_
