// What the ranks of an optimizer construct alike, from what a trainer gives.
#ifndef OPTSHARD_CLIENT_OWNER_OPTIMIZER_SPEC_CHOICE_H_
#define OPTSHARD_CLIENT_OWNER_OPTIMIZER_SPEC_CHOICE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "client/sharded_optimizer_options.h"
#include "common/group_rule.h"
#include "common/optimizer_spec.h"
#include "common/parameter_space.h"

namespace optshard {

// `rules`: by param group. INVALID_ARGUMENT for a name of a type that is not to be chosen; the rest
// is not validated. Thread-safe.
absl::StatusOr<OptimizerSpec> MakeOptimizerSpec(const ShardedOptimizerOptions& options,
                                                const std::vector<GroupRule>& rules,
                                                const ParameterSpace& space);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_OPTIMIZER_SPEC_CHOICE_H_
