#include "common/link/process_handle.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/link/poll_until.h"

namespace optshard {

absl::StatusOr<ProcessHandle> ProcessHandle::Open(pid_t pid) {
  // As the kernel shows a process that has no number here.
  if (pid == 0) {
    return absl::FailedPreconditionError(
        "cannot watch a process of another PID namespace, which has no number here: let trainers "
        "and shard servers share one PID namespace (in Kubernetes: shareProcessNamespace: true)");
  }
  // Closed on exec, always. Debian 12's C library has no function for it.
  UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (fd.valid()) return ProcessHandle(pid, std::move(fd));
  const int error = errno;
  if (error == ESRCH) return absl::NotFoundError(absl::StrCat("there is no process ", pid));
  return absl::ErrnoToStatus(error, absl::StrCat("cannot watch process ", pid, " (pidfd_open)"));
}

bool ProcessHandle::Gone() const { return WaitUntilGone(absl::InfinitePast()); }

bool ProcessHandle::WaitUntilGone(absl::Time deadline) const {
  return PollUntil(fd_.get(), POLLIN, deadline);
}

}  // namespace optshard
