// The processes of a launched job on one node, as a Job sees them.
#ifndef OPTSHARD_TOOLS_LAUNCHER_PROCESS_TABLE_H_
#define OPTSHARD_TOOLS_LAUNCHER_PROCESS_TABLE_H_

#include <sys/types.h>

#include "absl/status/statusor.h"
#include "tools/launcher/role.h"

namespace optshard {

class ProcessTable {
 public:
  virtual ~ProcessTable() = default;

  // Starts the process of a role, `life` times after the first one; returns its number. NOT_FOUND
  // or INTERNAL where it cannot be started. The table tells the job when it has ended.
  virtual absl::StatusOr<pid_t> Start(const Role& role, int life) = 0;

  // Signals the role's process; that of a trainer with all that it has started. Does nothing where
  // it does not run.
  virtual void Signal(const Role& role, int signal) = 0;

  // Sends SIGKILL to every process below this one and returns how many there still were. To be
  // called until it returns 0.
  virtual int KillAll() = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_TOOLS_LAUNCHER_PROCESS_TABLE_H_
