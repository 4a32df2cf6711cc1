// What updates cost: by this the greedy policies balance owners.
#ifndef OPTSHARD_SERVER_UPDATE_UPDATE_COSTS_H_
#define OPTSHARD_SERVER_UPDATE_UPDATE_COSTS_H_

#include "absl/types/span.h"
#include "common/group_rule.h"
#include "common/parameter_space.h"

namespace optshard {

// The space with the cost of each parameter by its group's rule (UpdateRule::UpdateCost). A
// parameter that the rule does not take has none, and neither has one whose group is stepped by an
// update of the trainer's own. `rules`: by group. Thread-safe.
ParameterSpace WithUpdateCosts(const ParameterSpace& space, absl::Span<const GroupRule> rules);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_UPDATE_COSTS_H_
