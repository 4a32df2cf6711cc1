// The update rule of a param group.
#ifndef OPTSHARD_COMMON_GROUP_RULE_H_
#define OPTSHARD_COMMON_GROUP_RULE_H_

#include <string>

#include "absl/types/span.h"
#include "common/hyperparameters.h"

namespace optshard {

// Thread-compatible value type.
struct GroupRule {
  std::string name;  // "adam", ...
  // What is not set has the rule's default.
  Hyperparameters hyperparameters = {};
};

// The names that there are, in the order of the groups, for people: "adam"; "muon+adamw" where some
// groups have one rule and some another. Names beyond the eighth are left out: "...+...".
std::string RulesText(absl::Span<const GroupRule> groups);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_GROUP_RULE_H_
