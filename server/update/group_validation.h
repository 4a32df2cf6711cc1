// Validates the hyperparameters of all param groups of an optimizer.
#ifndef OPTSHARD_SERVER_UPDATE_GROUP_VALIDATION_H_
#define OPTSHARD_SERVER_UPDATE_GROUP_VALIDATION_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/hyperparameters.h"
#include "server/update/update_rule.h"

namespace optshard {

// The groups with the rule's defaults filled in. INVALID_ARGUMENT: the first error of
// UpdateRule::Validate, with the number of its group. Thread-safe.
absl::StatusOr<std::vector<Hyperparameters>> ValidateGroups(
    const UpdateRule& rule, absl::Span<const Hyperparameters> given);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_GROUP_VALIDATION_H_
