#include "server/update/cuda/norm_scaled_rule.h"

#include <algorithm>
#include <vector>

namespace optshard {
namespace {

std::vector<NormScaledRule>& Registered() {
  static auto& rules = *new std::vector<NormScaledRule>;
  return rules;
}

}  // namespace

const NormScaledRule* NormScaledRules::Find(absl::string_view rule) {
  const std::vector<NormScaledRule>& rules = Registered();
  const auto found = std::find_if(rules.begin(), rules.end(),
                                  [rule](const NormScaledRule& each) { return each.rule == rule; });
  return found == rules.end() ? nullptr : &*found;
}

bool NormScaledRules::Register(const NormScaledRule& rule) {
  Registered().push_back(rule);
  return true;
}

}  // namespace optshard
