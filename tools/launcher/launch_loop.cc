#include "tools/launcher/launch_loop.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/link/poll_until.h"
#include "tools/launcher/launch_guard.h"

namespace optshard {
namespace {

// Between looks at files, and at processes that are being killed.
constexpr absl::Duration kLook = absl::Milliseconds(10);
constexpr absl::Duration kFirstReminder = absl::Seconds(5);
constexpr absl::Duration kReminder = absl::Seconds(15);
constexpr absl::Duration kServiceGrace = absl::Seconds(5);
// How long a reader of the output may take for what is left in the end.
constexpr absl::Duration kLastFlush = absl::Seconds(60);

absl::Time Now() { return Clock::Monotonic().Now(); }

bool Coloured(int descriptor) {
  const char* const none = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  return isatty(descriptor) != 0 && (none == nullptr || *none == '\0') && terminal != nullptr &&
         std::string(terminal) != "dumb";
}

const char* FromProcess(const char* name) { return std::getenv(name); }

}  // namespace

LaunchLoop::LaunchLoop(Options options)
    : options_(std::move(options)),
      processes_(ProcessOptions()),
      readiness_(&options_.plan, &options_.places),
      job_(JobOptions(), &processes_) {
  const sigset_t signals = LaunchSignals();
  signals_ = UniqueFd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

Job::Options LaunchLoop::JobOptions() {
  Job::Options job;
  job.first_rank = options_.plan.first_rank();
  job.ranks = options_.plan.ranks;
  job.coordinator = options_.plan.has_coordinator();
  job.server = options_.plan.server;
  job.other_nodes = options_.plan.nodes > 1;
  job.max_restarts = options_.plan.max_restarts;
  job.start_timeout = options_.start_timeout;
  job.grace = options_.grace;
  job.service_grace = kServiceGrace;
  job.say = [this](const std::string& text) { Say(text); };
  return job;
}

LocalProcesses::Options LaunchLoop::ProcessOptions() {
  LocalProcesses::Options processes;
  processes.command = [this](const Role& role, int life) { return CommandOf(role, life); };
  processes.output = &output_;
  processes.coloured_output = Coloured(STDOUT_FILENO);
  processes.coloured_error = Coloured(STDERR_FILENO);
  return processes;
}

LocalProcesses::Command LaunchLoop::CommandOf(const Role& role, int life) const {
  switch (role.kind) {
    case Role::Kind::kCoordinator:
      return {CoordinatorCommand(options_.plan, options_.places), absl::nullopt};
    case Role::Kind::kServer:
      return {ServerCommand(options_.plan, options_.places, FromProcess, kServiceGrace / 2),
              absl::nullopt};
    case Role::Kind::kTrainer:
      break;
  }
  return {options_.plan.program,
          WithVariables(environ, TrainerVariables(options_.plan, options_.places, role.rank, life,
                                                  FromProcess))};
}

int LaunchLoop::Run() {
  next_reminder_ = Now() + kFirstReminder;
  job_.Begin(Now());
  while (!job_.over()) {
    Wait();
    TakeSignals();
    if (!output_.full()) processes_.Read();
    for (const auto& [role, end] : processes_.Reap()) job_.Ended(role, end, Now());
    LookAtServices();
    job_.Tick(job_.phase() == LaunchPhase::kStartCoordinator ? readiness_.CoordinatorLacks()
                                                             : readiness_.ServerLacks(),
              Now());
    output_.Flush();
  }
  Report();
  FlushAll();
  return job_.exit_code();
}

void LaunchLoop::Wait() {
  std::vector<pollfd> descriptors = {{signals_.get(), POLLIN, 0}, {options_.guard, POLLIN, 0}};
  if (!output_.empty()) descriptors.push_back({output_.descriptor(), POLLOUT, 0});
  // Where nobody reads what this process writes, the others wait, too.
  if (!output_.full()) processes_.AddTo(descriptors);
  PollUntil(absl::MakeSpan(descriptors), WakeUp());
  if (descriptors[1].revents != 0) {
    options_.guard = -1;
    job_.Abandon("the process that was started as optshard-run is gone", Now());
  }
}

absl::Time LaunchLoop::WakeUp() const {
  const LaunchPhase phase = job_.phase();
  const bool looks = phase == LaunchPhase::kStartCoordinator ||
                     phase == LaunchPhase::kStartServer || phase == LaunchPhase::kKill;
  return looks ? std::min(job_.deadline(), Now() + kLook) : job_.deadline();
}

void LaunchLoop::TakeSignals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal != SIGCHLD) job_.Interrupt(signal, Now());
  }
}

void LaunchLoop::LookAtServices() {
  const bool coordinator = job_.phase() == LaunchPhase::kStartCoordinator;
  if (!coordinator && job_.phase() != LaunchPhase::kStartServer) return;
  if (coordinator ? readiness_.Coordinator(Now()) : readiness_.Server()) {
    // The trainers start next; whoever looks for the job finds its addresses above their lines.
    if (!coordinator || !options_.plan.server) Announce();
    job_.Ready(Now());
  } else if (Now() >= next_reminder_) {
    next_reminder_ = Now() + kReminder;
    Say(coordinator ? absl::StrCat("still waits: the coordinator ", readiness_.CoordinatorLacks())
                    : absl::StrCat("still waits: the shard server ", readiness_.ServerLacks()));
  }
}

void LaunchLoop::Announce() {
  const LaunchPlan& plan = options_.plan;
  Say(absl::StrCat("job ", plan.job, ": ranks ", plan.first_rank(), " to ", plan.last_rank(),
                   " of ", plan.world_size(), ", coordinator at ", options_.places.coordinator,
                   plan.server ? absl::StrCat(", shard server at ", options_.places.socket,
                                              ", its gRPC port is ", readiness_.InspectionPort())
                               : ""));
}

void LaunchLoop::Report() {
  const absl::optional<Job::Failure>& failure = job_.failure();
  if (!failure) return;
  if (failure->role) {
    const std::vector<std::string> lines = processes_.LastLines(*failure->role);
    if (!lines.empty()) {
      Say(absl::StrCat("the last lines of ", failure->role->Name(), " on stderr:"));
    }
    for (const std::string& line : lines) Say(absl::StrCat("  ", line));
  }
  Say(absl::StrCat(failure->what, "; the exit code is ", failure->exit_code));
}

void LaunchLoop::FlushAll() {
  const absl::Time deadline = Now() + kLastFlush;
  output_.Flush();
  while (!output_.empty() && Now() < deadline) {
    pollfd descriptors[] = {{signals_.get(), POLLIN, 0},
                            {options_.guard, POLLIN, 0},
                            {output_.descriptor(), POLLOUT, 0}};
    PollUntil(absl::MakeSpan(descriptors), deadline);
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof info) == sizeof info) {
      if (static_cast<int>(info.ssi_signo) != SIGCHLD) return;
    }
    if (descriptors[1].revents != 0) return;
    output_.Flush();
  }
}

void LaunchLoop::Say(const std::string& text) {
  output_.Add(STDERR_FILENO, absl::StrCat("optshard-run: ", text, "\n"));
}

}  // namespace optshard
