#include "common/process/descendants.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/types/optional.h"
#include "common/clock.h"
#include "common/link/poll_until.h"
#include "common/link/process_handle.h"
#include "common/link/process_stat.h"

namespace optshard {
namespace {

struct Process {
  pid_t pid;
  ProcessStat stat;
};

// All processes that /proc shows, by their parents.
std::multimap<pid_t, Process> ProcessesByParent() {
  std::multimap<pid_t, Process> processes;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc"), closedir);
  if (folder == nullptr) return processes;
  while (const dirent* entry = readdir(folder.get())) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid)) continue;
    const absl::optional<ProcessStat> stat = StatOfProcess(pid);
    if (stat) processes.insert({stat->parent, {pid, *stat}});
  }
  return processes;
}

// By a descriptor of the process, so that another one that got its number since is not hit.
void Kill(const Process& process) {
  const absl::StatusOr<ProcessHandle> handle = ProcessHandle::Open(process.pid);
  if (!handle.ok()) return;
  const absl::optional<ProcessStat> now = StatOfProcess(process.pid);
  if (!now || now->start_ticks != process.stat.start_ticks) return;
  syscall(SYS_pidfd_send_signal, handle->fd(), SIGKILL, nullptr, 0);
}

}  // namespace

void AdoptOrphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

int KillDescendants() {
  const std::multimap<pid_t, Process> processes = ProcessesByParent();
  std::vector<pid_t> parents = {getpid()};
  int living = 0;
  while (!parents.empty()) {
    const auto [first, last] = processes.equal_range(parents.back());
    parents.pop_back();
    for (auto child = first; child != last; ++child) {
      parents.push_back(child->second.pid);
      if (child->second.stat.ended()) continue;
      ++living;
      Kill(child->second);
    }
  }
  return living;
}

bool KillAndReapDescendants(absl::Time deadline) {
  while (KillDescendants() > 0) {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (Clock::Monotonic().Now() >= deadline) return false;
    PollUntil({}, Clock::Monotonic().Now() + absl::Milliseconds(1));
  }
  while (waitpid(-1, nullptr, WNOHANG) > 0) {
  }
  return true;
}

}  // namespace optshard
