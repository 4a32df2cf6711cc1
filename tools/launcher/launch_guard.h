// Two processes of which each cleans up after the other one, so that nothing of a job is left
// whichever of them is killed.
#ifndef OPTSHARD_TOOLS_LAUNCHER_LAUNCH_GUARD_H_
#define OPTSHARD_TOOLS_LAUNCHER_LAUNCH_GUARD_H_

#include <signal.h>

#include <functional>

namespace optshard {

// SIGINT, SIGTERM, SIGHUP and SIGQUIT, but for those that are ignored (nohup, a shell's "&"), and
// SIGCHLD.
sigset_t LaunchSignals();

struct GuardedLaunch {
  // Runs the job, in a child process with LaunchSignals() blocked, which leads a process group of
  // its own. `guard` becomes readable (end of file) once the calling process is gone; the work
  // should then end at once. Returns the exit code.
  std::function<int(int guard)> work;
  // Removes the job's files. Called once all processes of the job have ended; twice does no harm.
  std::function<void()> clean;
};

// The calling process, which is the one that the user sees, passes LaunchSignals() on to the child
// and waits for its end. Then it kills whatever is still below it and cleans. Where the child sees
// this process gone, it does the same. Returns the exit code for main. Call it while the process
// has one thread.
int RunGuarded(const GuardedLaunch& launch);

}  // namespace optshard

#endif  // OPTSHARD_TOOLS_LAUNCHER_LAUNCH_GUARD_H_
