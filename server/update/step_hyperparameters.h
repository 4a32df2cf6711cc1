// Checks the hyperparameters that a trainer brings to a step.
#ifndef OPTSHARD_SERVER_UPDATE_STEP_HYPERPARAMETERS_H_
#define OPTSHARD_SERVER_UPDATE_STEP_HYPERPARAMETERS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/hyperparameters.h"
#include "server/update/group_update.h"

namespace optshard {

// `given` with the defaults of each group's rule filled in. They may change the values of
// `constructed`, which the optimizer was constructed with, but not the slots that there are. Both
// are by param group. INVALID_ARGUMENT, naming the param group and the option, where a value is out
// of its range or would need other slots; also for another number of groups. Thread-safe.
absl::StatusOr<std::vector<Hyperparameters>> ValidateForStep(
    absl::Span<const GroupUpdate> constructed, absl::Span<const Hyperparameters> given);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_STEP_HYPERPARAMETERS_H_
