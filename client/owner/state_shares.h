// Cuts a rank's share out of a whole state dict.
#ifndef OPTSHARD_CLIENT_OWNER_STATE_SHARES_H_
#define OPTSHARD_CLIENT_OWNER_STATE_SHARES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "client/replica/parameter_owners.h"
#include "client/state_dict.h"
#include "common/ids.h"

namespace optshard {

// A share is the state dict of an optimizer over the param groups that partition_parameters() gives
// for its rank: every group is there, and the parameters of which the rank owns some elements are
// numbered from 0 on. Of a parameter that is cut, a tensor with a value for each element becomes
// one of shape [elements], those that the rank owns. Pure functions, thread-safe.

// Their indices, in the order of their positions: that of the share.
std::vector<int> ParametersOf(const ParameterOwners& owners, Rank rank);

// `whole` numbers the parameters over the groups in order. Tensors that are cut are copied, the
// others shared. INVALID_ARGUMENT: another number of groups or parameters of a group; a rank that
// is none; state of a cut parameter that is neither one number nor of the parameter's shape.
absl::StatusOr<StateDict> CutShare(const StateDict& whole, const ParameterOwners& owners,
                                   Rank rank);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_STATE_SHARES_H_
