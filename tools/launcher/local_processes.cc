#include "tools/launcher/local_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/process/descendants.h"

namespace optshard {
namespace {

// 1 is the end that is written to, and waits where nobody reads; reading never waits.
absl::Status MakePipe(UniqueFd (&ends)[2]) {
  int descriptors[2];
  if (pipe2(descriptors, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe2(): ", std::strerror(errno)));
  }
  ends[0] = UniqueFd(descriptors[0]);
  ends[1] = UniqueFd(descriptors[1]);
  fcntl(descriptors[0], F_SETFL, O_NONBLOCK);
  return absl::OkStatus();
}

}  // namespace

LocalProcesses::LocalProcesses(Options options)
    : options_(std::move(options)), nothing_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {}

absl::StatusOr<pid_t> LocalProcesses::Start(const Role& role, int life) {
  UniqueFd output[2];
  UniqueFd error[2];
  absl::Status made = MakePipe(output);
  if (made.ok()) made = MakePipe(error);
  if (!made.ok()) return made;
  Command command = options_.command(role, life);
  ChildProcess::Options options;
  options.command = std::move(command.words);
  options.environment = std::move(command.environment);
  options.input = nothing_.get();
  options.output = output[1].get();
  options.error = error[1].get();
  absl::StatusOr<std::unique_ptr<ChildProcess>> child = ChildProcess::Start(options);
  if (!child.ok()) return child.status();
  Process process;
  process.child = *std::move(child);
  process.streams.push_back({std::move(output[0]), STDOUT_FILENO,
                             PrefixedLines(LinePrefix(role, options_.coloured_output))});
  process.streams.push_back({std::move(error[0]), STDERR_FILENO,
                             PrefixedLines(LinePrefix(role, options_.coloured_error))});
  const pid_t pid = process.child->pid();
  processes_.erase(role);
  processes_.emplace(role, std::move(process));
  return pid;
}

void LocalProcesses::Signal(const Role& role, int signal) {
  const auto found = processes_.find(role);
  if (found == processes_.end() || found->second.child == nullptr) return;
  if (role.kind == Role::Kind::kTrainer) {
    found->second.child->SignalGroup(signal);
  } else {
    // A keeper passes it on to its server.
    found->second.child->Signal(signal);
  }
}

int LocalProcesses::KillAll() { return KillDescendants(); }

void LocalProcesses::AddTo(std::vector<pollfd>& descriptors) const {
  for (const auto& [role, process] : processes_) {
    for (const Stream& stream : process.streams) {
      if (stream.pipe.valid()) descriptors.push_back({stream.pipe.get(), POLLIN, 0});
    }
  }
}

void LocalProcesses::Read() {
  for (auto& [role, process] : processes_) {
    for (Stream& stream : process.streams) ReadFrom(stream);
  }
}

// As much as a pipe holds: one process that writes all the time does not keep the others waiting.
void LocalProcesses::ReadFrom(Stream& stream) {
  if (!stream.pipe.valid()) return;
  char buffer[64 << 10];
  const ssize_t count = read(stream.pipe.get(), buffer, sizeof buffer);
  if (count > 0) {
    options_.output->Add(stream.descriptor,
                         stream.lines.Take(absl::string_view(buffer, static_cast<size_t>(count))));
  } else if (count == 0) {
    stream.pipe = UniqueFd();
  }
}

std::vector<std::pair<Role, ProcessEnd>> LocalProcesses::Reap() {
  siginfo_t info = {};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    ChildProcess* const child = ChildOf(info.si_pid);
    if (child == nullptr) {
      waitpid(info.si_pid, nullptr, WNOHANG);  // an orphan that this process has adopted
    } else {
      // While the child is not reaped its group cannot be that of others.
      child->SignalGroup(SIGKILL);
      child->end();
    }
    info = {};
  }
  std::vector<std::pair<Role, ProcessEnd>> ended;
  for (auto& [role, process] : processes_) {
    if (process.child != nullptr && process.child->end()) ended.emplace_back(role, Close(process));
  }
  return ended;
}

ChildProcess* LocalProcesses::ChildOf(pid_t pid) {
  for (auto& [role, process] : processes_) {
    if (process.child != nullptr && process.child->pid() == pid) return process.child.get();
  }
  return nullptr;
}

ProcessEnd LocalProcesses::Close(Process& process) {
  const ProcessEnd end = *process.child->end();
  process.child.reset();
  for (Stream& stream : process.streams) {
    ReadFrom(stream);
    options_.output->Add(stream.descriptor, stream.lines.Finish());
    stream.pipe = UniqueFd();
  }
  return end;
}

std::vector<std::string> LocalProcesses::LastLines(const Role& role) const {
  const auto found = processes_.find(role);
  if (found == processes_.end()) return {};
  return found->second.streams.back().lines.last();
}

}  // namespace optshard
