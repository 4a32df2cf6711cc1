#include "server/update/step_hyperparameters.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errors.h"
#include "server/update/group_validation.h"

namespace optshard {

absl::StatusOr<std::vector<Hyperparameters>> ValidateForStep(
    const UpdateRule& rule, absl::Span<const Hyperparameters> constructed,
    absl::Span<const Hyperparameters> given) {
  if (given.size() != constructed.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("hyperparameters of %d groups were given, expected those of %d",
                        given.size(), constructed.size()));
  }
  absl::StatusOr<std::vector<Hyperparameters>> validated = ValidateGroups(rule, given);
  if (!validated.ok()) return validated.status();
  for (size_t g = 0; g < given.size(); ++g) {
    absl::Status changed = rule.ValidateChange(constructed[g], (*validated)[g]);
    if (!changed.ok()) return errors::WithContext(changed, absl::StrCat("param group ", g));
  }
  return validated;
}

}  // namespace optshard
