// The options of a param group as they stand in a state dict of PyTorch, and back.
#ifndef OPTSHARD_CLIENT_OWNER_GROUP_VALUES_H_
#define OPTSHARD_CLIENT_OWNER_GROUP_VALUES_H_

#include "absl/status/statusor.h"
#include "client/state_dict.h"
#include "common/hyperparameters.h"
#include "server/update/update_rule.h"

namespace optshard {

// Numbers that PyTorch wants whole are, and several that are one value are a tuple.
StateValues ValuesOf(const UpdateRule& rule, const Hyperparameters& hyperparameters);

// All hyperparameters of the rule: those of `values`, else those of `present`. What chooses one of
// PyTorch's implementations of the same update (foreach, fused, capturable, differentiable), the
// parameters' names and initial_lr are left out. INVALID_ARGUMENT for another option that the rule
// does not have, or a value that it does not take.
absl::StatusOr<Hyperparameters> HyperparametersFrom(const UpdateRule& rule,
                                                    const StateValues& values,
                                                    const Hyperparameters& present);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_GROUP_VALUES_H_
