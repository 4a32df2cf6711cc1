#include "tools/launcher/job.h"

#include <signal.h>

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace optshard {
namespace {

using Kind = Role::Kind;

std::string HowItEnded(const Role& role, pid_t pid, const ProcessEnd& end) {
  return absl::StrCat(role.Name(), " (process ", pid, ") ",
                      end.signal != 0 ? "was killed by " : "failed with ", ToString(end));
}

}  // namespace

Job::Job(Options options, ProcessTable* table)
    : options_(std::move(options)), table_(table), end_signal_(SIGTERM) {}

void Job::Begin(absl::Time now) { Enter(LaunchPhase::kStartCoordinator, now); }

void Job::Ready(absl::Time now) { Handle(LaunchEvent::kReady, now); }

void Job::Ended(const Role& role, const ProcessEnd& end, absl::Time now) {
  Process& process = processes_[role];
  process.running = false;
  if (!Ending() && !Expected(role, end)) {
    const std::string what = end.ok() ? absl::StrCat(role.Name(), " (process ", process.pid,
                                                     ") ended, though the job goes on")
                                      : HowItEnded(role, process.pid, end);
    if (Replace(role, what, now)) return;
    Fail({role, what, end.ok() ? 1 : end.shell_code()}, now);
  }
  CheckGone(now);
}

void Job::Interrupt(int signal, absl::Time now) {
  if (!failure_) {
    failure_ =
        Failure{absl::nullopt, absl::StrCat("stopped by ", SignalName(signal)), 128 + signal};
  }
  if (Ending()) {
    if (phase_ < LaunchPhase::kKill) {
      options_.say(absl::StrCat(SignalName(signal), " again, so all processes are killed"));
    }
  } else {
    end_signal_ = signal;
    options_.say(absl::StrCat(SignalName(signal), ": the trainers get it, and ",
                              absl::FormatDuration(options_.grace),
                              " to end; the same again kills all processes at once"));
  }
  Handle(LaunchEvent::kInterrupt, now);
}

void Job::Abandon(const std::string& why, absl::Time now) {
  if (!failure_) failure_ = Failure{absl::nullopt, why, 1};
  if (phase_ < LaunchPhase::kKill) Enter(LaunchPhase::kKill, now);
}

void Job::Tick(const std::string& waits_for, absl::Time now) {
  CheckGone(now);
  if (now < deadline_) return;
  if (!Ending()) {
    const bool coordinator = phase_ == LaunchPhase::kStartCoordinator;
    Fail({coordinator ? Role::Coordinator() : Role::Server(),
          absl::StrCat("the ", coordinator ? "coordinator" : "shard server", " ", waits_for,
                       " within ", absl::FormatDuration(options_.start_timeout)),
          1},
         now);
    return;
  }
  options_.say(absl::StrCat(WhoRuns(), " did not end in time, and ",
                            phase_ == LaunchPhase::kKill ? "cannot be killed" : "is killed"));
  Handle(LaunchEvent::kDeadline, now);
}

void Job::Handle(LaunchEvent event, absl::Time now) {
  const LaunchPhase next = NextPhase(phase_, event);
  if (next != phase_) Enter(next, now);
}

void Job::Enter(LaunchPhase phase, absl::Time now) {
  phase_ = phase;
  deadline_ = absl::InfiniteFuture();
  switch (phase) {
    case LaunchPhase::kStartCoordinator:
      deadline_ = now + options_.start_timeout;
      if (options_.coordinator) StartOrFail(Role::Coordinator(), now);
      return;
    case LaunchPhase::kStartServer:
      if (!options_.server) return Handle(LaunchEvent::kReady, now);
      deadline_ = now + options_.start_timeout;
      return StartOrFail(Role::Server(), now);
    case LaunchPhase::kTrain:
      return StartTrainers(now);
    case LaunchPhase::kEndTrainers:
      return EndTrainers(now);
    case LaunchPhase::kEndServer:
      return EndServer(now);
    case LaunchPhase::kEndCoordinator:
      return EndCoordinator(now);
    case LaunchPhase::kKill:
      deadline_ = now + options_.kill_timeout;
      return CheckGone(now);
    case LaunchPhase::kOver:
      return;
  }
}

void Job::StartTrainers(absl::Time now) {
  for (int i = 0; i < options_.ranks && phase_ == LaunchPhase::kTrain; ++i) {
    StartOrFail(Role::Trainer(options_.first_rank + i), now);
  }
}

void Job::EndTrainers(absl::Time now) {
  deadline_ = now + options_.grace;
  for (const auto& [role, process] : processes_) {
    if (role.kind == Kind::kTrainer && process.running) table_->Signal(role, end_signal_);
  }
  CheckGone(now);
}

void Job::EndServer(absl::Time now) {
  deadline_ = now + options_.service_grace;
  if (AnyRuns(Kind::kServer)) table_->Signal(Role::Server(), SIGTERM);
  CheckGone(now);
}

void Job::EndCoordinator(absl::Time now) {
  const bool ends_itself = options_.other_nodes && !failure_;
  deadline_ = now + (ends_itself ? options_.other_nodes_timeout : options_.service_grace);
  if (!ends_itself && AnyRuns(Kind::kCoordinator)) table_->Signal(Role::Coordinator(), SIGTERM);
  CheckGone(now);
}

void Job::StartOrFail(const Role& role, absl::Time now) {
  const absl::StatusOr<pid_t> pid = table_->Start(role, processes_[role].life);
  if (!pid.ok()) {
    Fail({role, absl::StrCat(role.Name(), " was not started: ", pid.status().message()), 1}, now);
    return;
  }
  processes_[role].pid = *pid;
  processes_[role].running = true;
}

bool Job::Replace(const Role& role, const std::string& what, absl::Time now) {
  if (role.kind != Kind::kTrainer || phase_ != LaunchPhase::kTrain || !options_.server ||
      restarts_ >= options_.max_restarts) {
    return false;
  }
  ++restarts_;
  ++processes_[role].life;
  options_.say(absl::StrCat(what, "; it is started again (restart ", restarts_, " of ",
                            options_.max_restarts, ")"));
  StartOrFail(role, now);
  return true;
}

void Job::Fail(Failure failure, absl::Time now) {
  // The first one: after it the job is ending, and what ends then is no failure.
  options_.say(absl::StrCat(failure.what, "; the job is ended"));
  failure_ = std::move(failure);
  Handle(LaunchEvent::kFailure, now);
}

bool Job::Expected(const Role& role, const ProcessEnd& end) const {
  if (!end.ok()) return false;
  return role.kind == Kind::kTrainer || (role.kind == Kind::kCoordinator && options_.other_nodes);
}

void Job::CheckGone(absl::Time now) {
  bool gone = false;
  switch (phase_) {
    case LaunchPhase::kStartCoordinator:
    case LaunchPhase::kStartServer:
    case LaunchPhase::kOver:
      return;
    case LaunchPhase::kTrain:
    case LaunchPhase::kEndTrainers:
      gone = !AnyRuns(Kind::kTrainer);
      break;
    case LaunchPhase::kEndServer:
      gone = !AnyRuns(Kind::kServer);
      break;
    case LaunchPhase::kEndCoordinator:
      gone = !AnyRuns(Kind::kCoordinator);
      break;
    case LaunchPhase::kKill:
      gone = table_->KillAll() == 0;
      break;
  }
  if (gone) Handle(LaunchEvent::kGone, now);
}

bool Job::AnyRuns(Kind kind) const {
  for (const auto& [role, process] : processes_) {
    if (role.kind == kind && process.running) return true;
  }
  return false;
}

std::string Job::WhoRuns() const {
  std::vector<std::string> names;
  for (const auto& [role, process] : processes_) {
    if (process.running) names.push_back(role.Name());
  }
  return names.empty() ? "a process of the job" : absl::StrJoin(names, ", ");
}

}  // namespace optshard
