// A pidfd: it identifies a process even after its number is given to another one.
#ifndef OPTSHARD_COMMON_LINK_PROCESS_HANDLE_H_
#define OPTSHARD_COMMON_LINK_PROCESS_HANDLE_H_

#include <sys/types.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/link/unique_fd.h"

namespace optshard {

// Thread-compatible; const methods from any thread.
class ProcessHandle {
 public:
  // NOT_FOUND where there is no such process; FAILED_PRECONDITION for the number 0, which a socket
  // gives for a peer in another PID namespace.
  static absl::StatusOr<ProcessHandle> Open(pid_t pid);

  pid_t pid() const { return pid_; }
  // Readable (POLLIN) once the process is gone; for poll.
  int fd() const { return fd_.get(); }

  // Whether the process has ended, even if it is not reaped yet.
  bool Gone() const;
  // Waits until it has ended. Returns false at the deadline (Clock::Monotonic()).
  bool WaitUntilGone(absl::Time deadline) const;

 private:
  ProcessHandle(pid_t pid, UniqueFd fd) : pid_(pid), fd_(static_cast<UniqueFd&&>(fd)) {}

  pid_t pid_ = 0;
  UniqueFd fd_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_PROCESS_HANDLE_H_
