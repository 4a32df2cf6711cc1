// Puts the whole state of an optimizer together.
#ifndef OPTSHARD_CLIENT_OWNER_STATE_CONSOLIDATION_H_
#define OPTSHARD_CLIENT_OWNER_STATE_CONSOLIDATION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "client/owner/rank_exchange.h"
#include "client/owner/state_layout.h"
#include "client/state_dict.h"
#include "common/ids.h"

namespace optshard {

// The "state" of a state dict on rank `to`, or with kFromEveryRank on all; nothing on the others. A
// parameter that was never updated has no state. All ranks call it, between the same steps. Takes
// the memory of what it returns and, on each rank, that of SharedStateReader. RESOURCE_EXHAUSTED on
// all ranks, naming one that has no memory for it; errors as SharedStateReader::Read.
absl::StatusOr<std::map<int64_t, StateValues>> ConsolidateState(RankExchange& exchange,
                                                                const StateLayout& layout, Rank to);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_STATE_CONSOLIDATION_H_
