// The one logging seam. Libraries say what happened, with who and where as fields; a main decides
// what is shown (InitLogging). Until then, and by default, only warnings and errors go to stderr.
// Thread-safe.
#ifndef OPTSHARD_COMMON_LOG_H_
#define OPTSHARD_COMMON_LOG_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/ids.h"

namespace optshard {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Who speaks. Copied into every line; fields left at their defaults are not printed.
struct LogContext {
  std::string role;  // "coordinator", "owner", "client"
  std::string job;
  Rank rank = -1;
  Generation generation = 0;
  StepNumber step = 0;
};

// "debug", "info", "warning", "error", "off"; INVALID_ARGUMENT, listing them, for anything else.
absl::Status SetLogLevel(absl::string_view level);
bool LogEnabled(LogLevel level);
void LogLine(LogLevel level, const LogContext& context, absl::string_view message);

template <typename... Args>
void Log(LogLevel level, const LogContext& context, const absl::FormatSpec<Args...>& format,
         const Args&... args) {
  if (LogEnabled(level)) LogLine(level, context, absl::StrFormat(format, args...));
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LOG_H_
