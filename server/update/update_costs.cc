#include "server/update/update_costs.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/update/update_rule.h"

namespace optshard {

ParameterSpace WithUpdateCosts(const ParameterSpace& space, absl::Span<const GroupRule> rules) {
  std::vector<GroupSpec> groups = space.groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    const absl::StatusOr<const UpdateRule*> rule = RuleRegistry::Find(rules[g].name);
    if (!rule.ok()) continue;
    for (ParameterSpec& parameter : groups[g].parameters) {
      if (!(*rule)->CheckParameter(parameter.shape).ok()) continue;
      parameter.update_cost = (*rule)->UpdateCost(parameter.shape);
    }
  }
  return ParameterSpace(std::move(groups));
}

}  // namespace optshard
