// The optimizer state of one rank's part of a parameter, as tensors.
#ifndef OPTSHARD_CLIENT_OWNER_PARAMETER_STATE_H_
#define OPTSHARD_CLIENT_OWNER_PARAMETER_STATE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/owner/owner_link.h"
#include "client/replica/parameter_owners.h"
#include "common/ids.h"
#include "server/shard/state/parameter_slots.h"
#include "server/shard/state/state_access.h"

namespace optshard {

using StateSlots = std::map<std::string, at::Tensor>;  // by name

// In which a slot's values are given out, and its shape in what a rank owns.
at::ScalarType TypeOf(const ParameterSlot& slot);
at::IntArrayRef ShapeOf(const ParameterSlot& slot, const OwnedPart& part);
// Of the slot's first element that is owned.
int64_t OffsetOf(const ParameterSlot& slot, const OwnedPart& part);

// How often a parameter was updated, as it stands in its state: float32 as PyTorch's, but float64
// beyond the numbers that float32 counts.
at::Tensor StepTensor(double count);

// "[2, 3]".
std::string ShapeText(at::IntArrayRef shape);

// Copies elements of a slot from `offset_elements` on into all of `to`, a dense tensor of one
// dimension, or replaces them by all of `from`, which may be of any type. Errors as StateAccess.
absl::Status ReadElements(StateAccess& state, int parameter, int slot, int64_t offset_elements,
                          const at::Tensor& to);
absl::Status WriteElements(StateAccess& state, int parameter, int slot, int64_t offset_elements,
                           const at::Tensor& from);
// As WriteElements, of what is staged.
absl::Status StageElements(StateAccess& state, int parameter, int slot, int64_t offset_elements,
                           const at::Tensor& from);

// Copies of all slots of what the rank owns of the parameter; none where it owns nothing. Slots
// that are one number have the shape [], others a shape of their own where the rule says so.
// INVALID_ARGUMENT as ParameterOwners::IndexOf; else as OwnerLink::state, which is given `timeout`.
absl::StatusOr<StateSlots> ReadState(OwnerLink& owner, const ParameterOwners& owners, Rank rank,
                                     const at::Tensor& parameter, absl::Duration timeout);

// Replaces all slots by copies of `given`. A slot that is one number may be of any type, in any
// shape of one element. Errors as ReadState, and INVALID_ARGUMENT naming the parameter and the
// slot: one that is missing or unknown; a tensor that is not dense on the CPU, of another shape or
// type; a "step" that is no integer from 0 on; slots of what the rank does not own. Nothing has
// changed then. After an error of the owner's, some of it may be replaced: the same call completes
// it.
absl::Status WriteState(OwnerLink& owner, const ParameterOwners& owners, Rank rank,
                        const at::Tensor& parameter, const StateSlots& given,
                        absl::Duration timeout);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_PARAMETER_STATE_H_
