#include "common/process/process_end.h"

#include <sys/wait.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace optshard {

ProcessEnd ProcessEndOf(int wait_status) {
  ProcessEnd end;
  if (WIFSIGNALED(wait_status)) {
    end.signal = WTERMSIG(wait_status);
  } else {
    end.exit_code = WEXITSTATUS(wait_status);
  }
  return end;
}

std::string SignalName(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat("signal ", signal);
}

std::string ToString(const ProcessEnd& end) {
  return end.signal != 0 ? SignalName(end.signal) : absl::StrCat("exit code ", end.exit_code);
}

}  // namespace optshard
