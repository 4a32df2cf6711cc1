#include "common/log.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "spdlog/logger.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace optshard {
namespace {

struct NamedLevel {
  absl::string_view name;
  spdlog::level::level_enum level;
};

constexpr NamedLevel kLevels[] = {{"debug", spdlog::level::debug},
                                  {"info", spdlog::level::info},
                                  {"warning", spdlog::level::warn},
                                  {"error", spdlog::level::err},
                                  {"off", spdlog::level::off}};

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  return kLevels[static_cast<int>(level)].level;
}

// Ours alone, not in spdlog's registry: a program that uses spdlog itself keeps its settings.
spdlog::logger& Logger() {
  static spdlog::logger* const logger = [] {
    auto* made = new spdlog::logger("optshard", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_formatter(std::make_unique<spdlog::pattern_formatter>(
        "%Y-%m-%dT%H:%M:%S.%fZ %l %v", spdlog::pattern_time_type::utc));
    made->set_level(spdlog::level::warn);
    made->flush_on(spdlog::level::debug);
    return made;
  }();  // lives for ever: destructors of statics may log
  return *logger;
}

}  // namespace

absl::Status SetLogLevel(absl::string_view level) {
  for (const NamedLevel& known : kLevels) {
    if (known.name != level) continue;
    Logger().set_level(known.level);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown log level \"", level,
                                                 "\"; known are debug, info, warning, error, off"));
}

bool LogEnabled(LogLevel level) {
  return level != LogLevel::kOff && Logger().should_log(ToSpdlog(level));
}

void LogLine(LogLevel level, const LogContext& context, absl::string_view message) {
  if (!LogEnabled(level)) return;
  std::string line;
  if (!context.role.empty()) absl::StrAppend(&line, context.role, " ");
  if (!context.job.empty()) absl::StrAppend(&line, "job=", context.job, " ");
  if (context.rank >= 0) absl::StrAppend(&line, "rank=", context.rank, " ");
  if (context.generation > 0) absl::StrAppend(&line, "generation=", context.generation, " ");
  if (context.step > 0) absl::StrAppend(&line, "step=", context.step, " ");
  absl::StrAppend(&line, message);
  line = absl::StrReplaceAll(line, {{"\n", "\\n"}, {"\r", "\\r"}});
  Logger().log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace optshard
