// Checks the hyperparameters that a trainer brings to a step.
#ifndef OPTSHARD_SERVER_UPDATE_STEP_HYPERPARAMETERS_H_
#define OPTSHARD_SERVER_UPDATE_STEP_HYPERPARAMETERS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/hyperparameters.h"
#include "server/update/update_rule.h"

namespace optshard {

// ValidateGroups of `given`, which may change the values of `constructed` but not the slots that
// there are. `constructed` are the validated hyperparameters of the optimizer's construction. Both
// are by param group. INVALID_ARGUMENT, naming the param group and the option, where a value is out
// of its range or would need other slots; also for another number of groups. Thread-safe.
absl::StatusOr<std::vector<Hyperparameters>> ValidateForStep(
    const UpdateRule& rule, absl::Span<const Hyperparameters> constructed,
    absl::Span<const Hyperparameters> given);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_STEP_HYPERPARAMETERS_H_
