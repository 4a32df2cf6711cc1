// What /proc says about a process.
#ifndef OPTSHARD_COMMON_LINK_PROCESS_STAT_H_
#define OPTSHARD_COMMON_LINK_PROCESS_STAT_H_

#include <sys/types.h>

#include <cstdint>

#include "absl/types/optional.h"

namespace optshard {

struct ProcessStat {
  char state = '?';  // as proc(5) has it: 'T' is stopped, 'Z' has ended and is not reaped
  pid_t parent = 0;
  uint64_t start_ticks = 0;  // since boot; with the process's number it tells who it is

  bool ended() const { return state == 'Z' || state == 'X'; }
  bool stopped() const { return state == 'T' || state == 't'; }
};

// Nothing where there is no such process. Thread-safe.
absl::optional<ProcessStat> StatOfProcess(pid_t pid);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_PROCESS_STAT_H_
