// The kinds of options that rules declare, each with its range and the check of it.
#ifndef OPTSHARD_SERVER_UPDATE_OPTION_SPEC_H_
#define OPTSHARD_SERVER_UPDATE_OPTION_SPEC_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/update/update_rule.h"

namespace optshard::options {

OptionSpec Flag(absl::string_view name, bool default_value, absl::string_view doc);
OptionSpec Finite(absl::string_view name, double default_value, absl::string_view doc);
OptionSpec NonNegative(absl::string_view name, double default_value, absl::string_view doc);
// Finite numbers.
OptionSpec NonPositive(absl::string_view name, double default_value, absl::string_view doc);
OptionSpec AtLeast1(absl::string_view name, double default_value, absl::string_view doc);
// In [0, 1].
OptionSpec Fraction(absl::string_view name, double default_value, absl::string_view doc);
OptionSpec Positive(absl::string_view name, double default_value, absl::string_view doc);
// A whole number from `least` to `most`.
OptionSpec Whole(absl::string_view name, int default_value, int least, int most,
                 absl::string_view doc);
// As many numbers as the default has.
OptionSpec FiniteNumbers(absl::string_view name, Numbers default_value, absl::string_view doc);
// One of `choices`, of which the first is the default.
OptionSpec Choice(absl::string_view name, std::vector<std::string> choices, absl::string_view doc);
// Two numbers in [0, 1).
OptionSpec DecayRates(absl::string_view name, Numbers default_value, absl::string_view doc);
// Two finite numbers, >= 0.
OptionSpec NonNegativePair(absl::string_view name, Numbers default_value, absl::string_view doc);
// Two numbers, one in (0, 1) and one above 1.
OptionSpec Around1(absl::string_view name, Numbers default_value, absl::string_view doc);
// Two numbers, >= 0, of which the second is not smaller.
OptionSpec Ascending(absl::string_view name, Numbers default_value, absl::string_view doc);

}  // namespace optshard::options

#endif  // OPTSHARD_SERVER_UPDATE_OPTION_SPEC_H_
