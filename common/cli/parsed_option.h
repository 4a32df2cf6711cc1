// Options whose values are of types with a parser of their own.
#ifndef OPTSHARD_COMMON_CLI_PARSED_OPTION_H_
#define OPTSHARD_COMMON_CLI_PARSED_OPTION_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/cli/option.h"

namespace optshard {

// Stores in `target` what `parse` makes of an option's text.
template <typename Parse, typename Target>
CommandOption::Parser Into(Target* target, Parse parse) {
  return [target, parse](const std::string& text) -> absl::Status {
    auto parsed = parse(text);
    if (!parsed.ok()) return parsed.status();
    *target = *std::move(parsed);
    return absl::OkStatus();
  };
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CLI_PARSED_OPTION_H_
