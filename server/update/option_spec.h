// The kinds of options that rules declare, each with its range and the check of it.
#ifndef OPTSHARD_SERVER_UPDATE_OPTION_SPEC_H_
#define OPTSHARD_SERVER_UPDATE_OPTION_SPEC_H_

#include "absl/strings/string_view.h"
#include "server/update/update_rule.h"

namespace optshard::options {

OptionSpec Flag(absl::string_view name, bool default_value, absl::string_view doc);
OptionSpec Finite(absl::string_view name, double default_value, absl::string_view doc);
OptionSpec NonNegative(absl::string_view name, double default_value, absl::string_view doc);
OptionSpec DecayRates(absl::string_view name, Betas default_value, absl::string_view doc);

// The option has a say in which slots exist.
OptionSpec Structural(OptionSpec option);

}  // namespace optshard::options

#endif  // OPTSHARD_SERVER_UPDATE_OPTION_SPEC_H_
