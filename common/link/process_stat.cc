#include "common/link/process_stat.h"

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace optshard {

absl::optional<ProcessStat> StatOfProcess(pid_t pid) {
  constexpr int kBetween = 17;  // fields between the parent and the start
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // The name before the state, in parentheses, may hold anything.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return absl::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  ProcessStat stat;
  std::string skipped;
  fields >> stat.state >> stat.parent;
  for (int i = 0; i < kBetween; ++i) fields >> skipped;
  fields >> stat.start_ticks;
  return fields ? absl::make_optional(stat) : absl::nullopt;
}

}  // namespace optshard
