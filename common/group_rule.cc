#include "common/group_rule.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace optshard {

std::string RulesText(absl::Span<const GroupRule> groups) {
  constexpr size_t kMostNames = 8;
  std::vector<absl::string_view> names;
  for (const GroupRule& group : groups) {
    if (std::find(names.begin(), names.end(), group.name) != names.end()) continue;
    if (names.size() == kMostNames) {
      names.push_back("...");
      break;
    }
    names.push_back(group.name);
  }
  return absl::StrJoin(names, "+");
}

}  // namespace optshard
