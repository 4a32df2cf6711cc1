// A launched job on one node: which of its processes are started, signalled and replaced when.
#ifndef OPTSHARD_TOOLS_LAUNCHER_JOB_H_
#define OPTSHARD_TOOLS_LAUNCHER_JOB_H_

#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/process/process_end.h"
#include "tools/launcher/launch_phase.h"
#include "tools/launcher/process_table.h"
#include "tools/launcher/role.h"

namespace optshard {

// Knows no process but by the table, and no time but what it is told; so it does not wait, and
// whoever drives it (launch_loop.h) does. The phases are those of launch_phase.h.
//
// A trainer that ends with 0 is done. One that fails is replaced while there is a shard server,
// which has its rank's state, and while restarts are left; otherwise its failure ends the job, as
// does that of a service. Trainers are ended first, then the server, then the coordinator, so that
// a trainer that is told to end can still save what it has. Thread-compatible.
class Job {
 public:
  struct Options {
    int first_rank = 0;       // of this node's
    int ranks = 1;            // of this node
    bool coordinator = true;  // this node has it
    bool server = true;
    // Ranks of other nodes use this node's coordinator, too. It then ends by itself, once all have
    // left.
    bool other_nodes = false;
    int max_restarts = 0;  // of all ranks of this node together

    absl::Duration start_timeout = absl::Seconds(60);  // of each service
    absl::Duration grace = absl::Seconds(10);          // of the trainers, to end when told to
    absl::Duration service_grace = absl::Seconds(5);   // of the server, of the coordinator
    // How long this node's coordinator waits for the ranks of other nodes after a success.
    absl::Duration other_nodes_timeout = absl::Seconds(60);
    absl::Duration kill_timeout = absl::Seconds(10);

    // Told what the user should know, in whole sentences without a full stop.
    std::function<void(const std::string&)> say = [](const std::string&) {};
  };

  // What ended the job first. `role` is where it was a process.
  struct Failure {
    absl::optional<Role> role;
    std::string what;  // "rank 2 (process 17) failed with exit code 3"
    int exit_code = 1;
  };

  // The table must live as long.
  Job(Options options, ProcessTable* table);

  // Events. `now` is never before an earlier one's.
  void Begin(absl::Time now);
  // The service that phase() starts can be used.
  void Ready(absl::Time now);
  void Ended(const Role& role, const ProcessEnd& end, absl::Time now);
  void Interrupt(int signal, absl::Time now);
  // Ends everything at once: who started the launcher is gone, or it cannot go on.
  void Abandon(const std::string& why, absl::Time now);
  // Time has passed. `waits_for` says what a starting service has not done.
  void Tick(const std::string& waits_for, absl::Time now);

  LaunchPhase phase() const { return phase_; }
  bool over() const { return phase_ == LaunchPhase::kOver; }
  // When the phase ends by itself; InfiniteFuture where it does not.
  absl::Time deadline() const { return deadline_; }
  // Nothing where all went well so far.
  const absl::optional<Failure>& failure() const { return failure_; }
  // Once it is over: 0, the exit code of what failed first, or 128 + the first signal.
  int exit_code() const { return failure_ ? failure_->exit_code : 0; }

 private:
  struct Process {
    pid_t pid = 0;
    bool running = false;
    int life = 0;  // how many there were before
  };

  void Handle(LaunchEvent event, absl::Time now);
  void Enter(LaunchPhase phase, absl::Time now);
  void StartOrFail(const Role& role, absl::Time now);
  void StartTrainers(absl::Time now);
  void EndTrainers(absl::Time now);
  void EndServer(absl::Time now);
  void EndCoordinator(absl::Time now);
  void Fail(Failure failure, absl::Time now);
  bool Replace(const Role& role, const std::string& what, absl::Time now);
  // Whether an end of this process in this phase is no failure.
  bool Expected(const Role& role, const ProcessEnd& end) const;
  void CheckGone(absl::Time now);
  bool AnyRuns(Role::Kind kind) const;
  std::string WhoRuns() const;
  bool Ending() const { return phase_ >= LaunchPhase::kEndTrainers; }

  const Options options_;
  ProcessTable* const table_;
  LaunchPhase phase_ = LaunchPhase::kStartCoordinator;
  absl::Time deadline_ = absl::InfiniteFuture();
  std::map<Role, Process> processes_;
  int restarts_ = 0;
  int end_signal_;  // that trainers get
  absl::optional<Failure> failure_;
};

}  // namespace optshard

#endif  // OPTSHARD_TOOLS_LAUNCHER_JOB_H_
