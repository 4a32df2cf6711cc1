#include "server/update/step_hyperparameters.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errors.h"

namespace optshard {

absl::StatusOr<std::vector<Hyperparameters>> ValidateForStep(
    const UpdateRule& rule, absl::Span<const Hyperparameters> constructed,
    absl::Span<const Hyperparameters> given) {
  if (given.size() != constructed.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("hyperparameters of %d groups were given, expected those of %d",
                        given.size(), constructed.size()));
  }
  std::vector<Hyperparameters> validated;
  for (size_t g = 0; g < given.size(); ++g) {
    absl::StatusOr<Hyperparameters> values = rule.Validate(given[g]);
    absl::Status usable = values.status();
    if (usable.ok()) usable = rule.ValidateChange(constructed[g], *values);
    if (!usable.ok()) return errors::WithContext(usable, absl::StrCat("param group ", g));
    validated.push_back(*std::move(values));
  }
  return validated;
}

}  // namespace optshard
