// Which rules take which gradients: dense ones, sparse ones.
#ifndef OPTSHARD_SERVER_UPDATE_GRADIENT_SUPPORT_H_
#define OPTSHARD_SERVER_UPDATE_GRADIENT_SUPPORT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/hyperparameters.h"
#include "common/optimizer_spec.h"
#include "common/state_format.h"
#include "server/update/update_rule.h"

namespace optshard {

// Of a gradient that a parameter of the group has, sparse or dense. INVALID_ARGUMENT where the rule
// does not take it under these (validated) hyperparameters, or not with state of this format: names
// the rule, the rules that take it, and the way out. Thread-safe.
absl::Status CheckTakesGradient(const UpdateRule& rule, const Hyperparameters& group,
                                StateFormat state, bool sparse);

// By parameter: its rows (common/row_marks.h), where its group's rule takes sparse gradients;
// otherwise 0. Empty where no rule of a valid spec does. Thread-safe.
std::vector<int64_t> RowsThatMayBeSparse(const OptimizerSpec& spec);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_GRADIENT_SUPPORT_H_
