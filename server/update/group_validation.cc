#include "server/update/group_validation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace optshard {

absl::StatusOr<std::vector<Hyperparameters>> ValidateGroups(
    const UpdateRule& rule, absl::Span<const Hyperparameters> given) {
  std::vector<Hyperparameters> groups;
  for (const Hyperparameters& group : given) {
    absl::StatusOr<Hyperparameters> values = rule.Validate(group);
    if (!values.ok()) {
      return errors::WithContext(values.status(), absl::StrCat("param group ", groups.size()));
    }
    groups.push_back(*std::move(values));
  }
  return groups;
}

}  // namespace optshard
