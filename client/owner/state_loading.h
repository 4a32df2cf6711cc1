// Checks a state dict, and replaces a rank's state by its share of it.
#ifndef OPTSHARD_CLIENT_OWNER_STATE_LOADING_H_
#define OPTSHARD_CLIENT_OWNER_STATE_LOADING_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/owner/state_layout.h"
#include "client/state_dict.h"
#include "common/hyperparameters.h"
#include "common/ids.h"
#include "server/shard/state/state_access.h"

namespace optshard {

// A whole state dict as this optimizer can take it: its parameters, which may have any numbers, are
// numbered over the groups in order, and what says nothing (None) is left out. Shares the tensors.
// INVALID_ARGUMENT, in PyTorch's words where it has them: another number of param groups, or of
// parameters of one; state of a parameter that no group has; a slot that is missing, unknown, no
// dense tensor of numbers, or of another shape; a "step" that counts nothing. May be missing: a
// "step" where PyTorch keeps none for the rule, masters, and all of a parameter's state.
absl::StatusOr<StateDict> CheckedStateDict(const StateDict& given, const StateLayout& layout);

// The hyperparameters of all groups of a checked dict; those that it does not have are `present`
// ones. INVALID_ARGUMENT, with the group: HyperparametersFrom; or where the slots of a group would
// be others than those it was constructed with.
absl::StatusOr<std::vector<Hyperparameters>> CheckedHyperparameters(
    const StateDict& checked, const StateLayout& layout, absl::Span<const Hyperparameters> present);

// Replaces all slots that the rank keeps by those of its share (state_shares.h) of a checked dict.
// What the share does not have begins as before the first step with these hyperparameters; a master
// is the parameter, of which `parameters` holds all elements of all. Errors as StateAccess::Write,
// and none of INVALID_ARGUMENT.
absl::Status WriteShare(StateAccess& state, const StateLayout& layout, Rank rank,
                        const StateDict& share, absl::Span<const at::Tensor> parameters,
                        absl::Span<const Hyperparameters> hyperparameters);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_STATE_LOADING_H_
