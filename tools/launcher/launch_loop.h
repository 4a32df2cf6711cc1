// Runs a launched job from its start to its end: waits for signals, output and ends of processes,
// and tells the job.
#ifndef OPTSHARD_TOOLS_LAUNCHER_LAUNCH_LOOP_H_
#define OPTSHARD_TOOLS_LAUNCHER_LAUNCH_LOOP_H_

#include <poll.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/link/unique_fd.h"
#include "common/task_place.h"
#include "tools/launcher/job.h"
#include "tools/launcher/launch_plan.h"
#include "tools/launcher/local_processes.h"
#include "tools/launcher/output_queue.h"
#include "tools/launcher/process_commands.h"
#include "tools/launcher/service_readiness.h"

namespace optshard {

// Bound to the thread that constructs it, which must have LaunchSignals() blocked.
class LaunchLoop {
 public:
  struct Options {
    LaunchPlan plan;
    LaunchPlaces places;
    absl::Duration grace = absl::Seconds(10);
    absl::Duration start_timeout = absl::Seconds(60);
    int guard = -1;  // launch_guard.h
  };
  explicit LaunchLoop(Options options);

  // Returns the exit code, once all processes have ended and what they wrote is shown.
  int Run();

 private:
  Job::Options JobOptions();
  LocalProcesses::Options ProcessOptions();
  LocalProcesses::Command CommandOf(const Role& role, int life) const;

  void Wait();
  absl::Time WakeUp() const;
  void TakeSignals();
  void LookAtServices();
  void Announce();
  void Report();
  void FlushAll();
  void Say(const std::string& text);

  Options options_;
  OutputQueue output_;
  LocalProcesses processes_;
  ServiceReadiness readiness_;
  Job job_;
  UniqueFd signals_;
  absl::Time next_reminder_;
};

}  // namespace optshard

#endif  // OPTSHARD_TOOLS_LAUNCHER_LAUNCH_LOOP_H_
