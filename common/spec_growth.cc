#include "common/spec_growth.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

namespace optshard {

absl::Status CheckGrowth(const OptimizerSpec& present, const OptimizerSpec& next) {
  absl::Status valid = next.Validate();
  if (!valid.ok()) return valid;
  const int admissions = present.space.admission_count() + 1;
  if (next.space.admission_count() != admissions) {
    return absl::InvalidArgumentError(absl::StrCat("the param groups to be added make ",
                                                   next.space.admission_count(),
                                                   " admissions, expected ", admissions));
  }
  OptimizerSpec before = next;
  std::vector<GroupSpec> groups;
  for (const GroupSpec& group : next.space.groups()) {
    if (group.admission + 1 < admissions) groups.push_back(group);
  }
  before.rules.resize(groups.size());
  before.space = ParameterSpace(std::move(groups));
  const absl::optional<std::string> difference =
      FirstDifference(present, "the optimizer", before, "the proposal");
  if (!difference.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("added param groups change nothing of those that are there, but ", *difference));
}

}  // namespace optshard
