#include "tools/launcher/launch_guard.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/link/poll_until.h"
#include "common/link/unique_fd.h"
#include "common/process/descendants.h"
#include "common/process/process_end.h"

namespace optshard {
namespace {

constexpr absl::Duration kKill = absl::Seconds(10);

void KillTheRest() {
  if (!KillAndReapDescendants(Clock::Monotonic().Now() + kKill)) {
    std::fprintf(stderr, "optshard-run: processes of the job are left that cannot be killed\n");
  }
}

[[noreturn]] void Work(const GuardedLaunch& launch, int guard) {
  // Ctrl-C in a terminal reaches only the parent, which passes it on once. As a group in the
  // background this one may still write to the terminal.
  setpgid(0, 0);
  signal(SIGTTOU, SIG_IGN);
  AdoptOrphans();
  const int code = launch.work(guard);
  KillTheRest();
  if (PollUntil(guard, POLLIN, absl::InfinitePast())) launch.clean();
  std::fflush(nullptr);
  _exit(code);
}

// Waits for the end of the child; what comes meanwhile is passed on to it.
ProcessEnd WaitFor(pid_t child, const sigset_t& signals) {
  int status = 0;
  while (true) {
    siginfo_t info;
    if (sigwaitinfo(&signals, &info) < 0) continue;
    if (info.si_signo != SIGCHLD) {
      kill(child, info.si_signo);
    } else if (waitpid(child, &status, WNOHANG) == child) {
      return ProcessEndOf(status);
    }
  }
}

}  // namespace

sigset_t LaunchSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction action = {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&signals, number);
  }
  return signals;
}

int RunGuarded(const GuardedLaunch& launch) {
  const sigset_t signals = LaunchSignals();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGCHLD, SIG_DFL);  // a caller may have it ignored, which would lose how the child ended
  AdoptOrphans();
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    std::fprintf(stderr, "optshard-run: pipe2(): %s\n", std::strerror(errno));
    return 1;
  }
  UniqueFd guard(ends[0]);
  UniqueFd ours(ends[1]);
  const pid_t child = fork();
  if (child < 0) {
    std::fprintf(stderr, "optshard-run: fork(): %s\n", std::strerror(errno));
    return 1;
  }
  if (child == 0) {
    ours = UniqueFd();
    Work(launch, guard.get());
  }
  const ProcessEnd end = WaitFor(child, signals);
  KillTheRest();
  launch.clean();
  if (end.signal != 0) {
    std::fprintf(stderr,
                 "optshard-run: its process %d, which ran the job, was killed by %s; the job is "
                 "ended\n",
                 child, SignalName(end.signal).c_str());
  }
  return end.shell_code();
}

}  // namespace optshard
