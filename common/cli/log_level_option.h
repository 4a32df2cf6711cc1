// --log-level, which all programs have.
#ifndef OPTSHARD_COMMON_CLI_LOG_LEVEL_OPTION_H_
#define OPTSHARD_COMMON_CLI_LOG_LEVEL_OPTION_H_

#include <string>

#include "common/cli/command_line.h"

namespace optshard {

// `level` is for SetLogLevel (common/log.h).
inline CommandOption& AddLogLevelOption(CommandLine& line, std::string* level) {
  return line.Add("log-level", level, "least severe messages that are written to stderr")
      .OneOf({"debug", "info", "warning", "error", "off"});
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CLI_LOG_LEVEL_OPTION_H_
