// Checks a state dict, and stages a rank's share of it.
#ifndef OPTSHARD_CLIENT_OWNER_STATE_LOADING_H_
#define OPTSHARD_CLIENT_OWNER_STATE_LOADING_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "client/owner/state_layout.h"
#include "client/replica/parameter_owners.h"
#include "client/state_dict.h"
#include "common/hyperparameters.h"
#include "common/ids.h"
#include "server/shard/state/parameter_slots.h"
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

// What a checked dict has of a slot of a parameter; null where it has none.
const at::Tensor* GivenTensor(const StateDict& checked, const StateLayout& layout, int parameter,
                              const ParameterSlot& slot);

// What a checked dict has of a slot of the part of a parameter that a rank owns, in one dimension;
// nothing where it has none. Shares the dict's memory where that is dense.
absl::optional<at::Tensor> GivenValues(const StateDict& checked, const StateLayout& layout,
                                       const OwnedPart& part, const ParameterSlot& slot);

// Stages what a checked dict has of the slots that the rank keeps; staging has begun. Errors as
// StateAccess::Stage.
absl::Status StageGiven(StateAccess& state, const StateLayout& layout, Rank rank,
                        const StateDict& checked);

// Likewise the others, of which `is_given` is false, as before the first step with these
// hyperparameters; a master is the parameter, of which `parameters` holds all elements of all.
absl::Status StageFirstValues(StateAccess& state, const StateLayout& layout, Rank rank,
                              absl::FunctionRef<bool(int parameter, int slot)> is_given,
                              absl::Span<const at::Tensor> parameters,
                              absl::Span<const Hyperparameters> hyperparameters);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_STATE_LOADING_H_
