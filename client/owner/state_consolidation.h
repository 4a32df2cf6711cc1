// Puts the whole state of an optimizer together.
#ifndef OPTSHARD_CLIENT_OWNER_STATE_CONSOLIDATION_H_
#define OPTSHARD_CLIENT_OWNER_STATE_CONSOLIDATION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "client/owner/state_layout.h"
#include "client/owner/state_reader.h"
#include "client/state_dict.h"
#include "common/ids.h"

namespace optshard {

// The "state" of a state dict on rank `to`, or with kFromEveryRank on all; nothing on the others. A
// parameter that was never updated has no state. All ranks call it, between the same steps. Takes
// the memory of what it returns, and that of `reader`. Errors as StateReader::Read.
absl::StatusOr<std::map<int64_t, StateValues>> ConsolidateState(StateReader& reader,
                                                                const StateLayout& layout,
                                                                Rank rank, Rank to);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_STATE_CONSOLIDATION_H_
