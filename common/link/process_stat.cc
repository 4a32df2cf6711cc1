#include "common/link/process_stat.h"

#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/link/kernel_file.h"

namespace optshard {

absl::optional<ProcessStat> StatOfProcess(pid_t pid) {
  constexpr int kBetween = 17;  // fields between the parent and the start
  const absl::optional<std::string> text = ReadKernelFile(absl::StrCat("/proc/", pid, "/stat"));
  if (!text.has_value()) return absl::nullopt;
  // The name before the state, in parentheses, may hold anything.
  const size_t name_end = text->rfind(')');
  if (name_end == std::string::npos) return absl::nullopt;
  std::istringstream fields(text->substr(name_end + 1));
  ProcessStat stat;
  std::string skipped;
  fields >> stat.state >> stat.parent;
  for (int i = 0; i < kBetween; ++i) fields >> skipped;
  fields >> stat.start_ticks;
  return fields ? absl::make_optional(stat) : absl::nullopt;
}

}  // namespace optshard
