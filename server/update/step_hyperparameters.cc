#include "server/update/step_hyperparameters.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errors.h"
#include "server/update/update_rule.h"

namespace optshard {

absl::StatusOr<std::vector<Hyperparameters>> ValidateForStep(
    absl::Span<const GroupUpdate> constructed, absl::Span<const Hyperparameters> given) {
  if (given.size() != constructed.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("hyperparameters of %d groups were given, expected those of %d",
                        given.size(), constructed.size()));
  }
  std::vector<Hyperparameters> validated;
  for (size_t g = 0; g < given.size(); ++g) {
    const UpdateRule& rule = *constructed[g].rule;
    absl::StatusOr<Hyperparameters> values = rule.Validate(given[g]);
    absl::Status valid = values.status();
    if (valid.ok()) valid = rule.ValidateChange(constructed[g].hyperparameters, *values);
    if (!valid.ok()) return errors::WithContext(valid, absl::StrCat("param group ", g));
    validated.push_back(*std::move(values));
  }
  return validated;
}

}  // namespace optshard
