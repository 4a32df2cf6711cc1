// The end of a process in which something holds that cannot hold: a bug, never a user's mistake or
// the environment's, which get an absl::Status.
#ifndef OPTSHARD_COMMON_FATAL_H_
#define OPTSHARD_COMMON_FATAL_H_

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_format.h"

namespace optshard {

// Says what does not hold on stderr, and aborts. Any thread.
template <typename... Args>
[[noreturn]] void Fatal(const absl::FormatSpec<Args...>& format, const Args&... args) {
  absl::FPrintF(stderr, "%s\n", absl::StrFormat(format, args...));
  std::abort();
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_FATAL_H_
