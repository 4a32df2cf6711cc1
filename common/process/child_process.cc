#include "common/process/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace optshard {
namespace {

absl::Status Failed(const char* call, const std::string& what) {
  return absl::InternalError(absl::StrCat(call, "(", what, "): ", std::strerror(errno)));
}

// In the child, between fork and exec: async-signal-safe calls only.
[[noreturn]] void Become(const ChildProcess::Options& options, char* const* arguments,
                         char* const* environment, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent ended before the line above
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD, SIGTTOU}) {
    ::signal(signal, SIG_DFL);
  }
  if (options.input >= 0) dup2(options.input, STDIN_FILENO);
  if (options.output >= 0) dup2(options.output, STDOUT_FILENO);
  const int error = options.error >= 0 ? options.error : options.output;
  if (error >= 0) dup2(error, STDERR_FILENO);
  if (options.link == kLinkDescriptor) {
    fcntl(kLinkDescriptor, F_SETFD, 0);
  } else if (options.link >= 0) {
    dup2(options.link, kLinkDescriptor);
  }
  execve(arguments[0], arguments, environment);
  for (const char* part : {static_cast<const char*>(arguments[0]),
                           " cannot be executed: ", strerrordesc_np(errno), "\n"}) {
    if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  }
  _exit(127);
}

// For execve(); good as long as the strings.
std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& each : strings) pointers.push_back(const_cast<char*>(each.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const Options& options) {
  const std::string& name = options.command.front();
  if (access(name.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(name, " cannot be run: ", std::strerror(errno)));
  }
  const std::vector<char*> arguments = Pointers(options.command);
  std::vector<char*> given;
  if (options.environment) given = Pointers(*options.environment);
  char* const* variables = options.environment ? given.data() : environ;
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Failed("fork", name);
  if (pid == 0) Become(options, arguments.data(), variables, parent);
  setpgid(pid, pid);  // as the child does: whoever comes first, SignalGroup finds the group
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  auto child = std::unique_ptr<ChildProcess>(new ChildProcess(pid, descriptor, name));
  if (descriptor < 0) return Failed("pidfd_open", name);
  return child;
}

ChildProcess::~ChildProcess() {
  Signal(SIGKILL);
  if (!end_) waitpid(pid_, nullptr, 0);
  if (descriptor_ >= 0) close(descriptor_);
}

void ChildProcess::Signal(int signal) {
  if (!end()) kill(pid_, signal);
}

void ChildProcess::SignalGroup(int signal) {
  if (!end_) kill(-pid_, signal);
}

absl::optional<ProcessEnd> ChildProcess::end() {
  int status = 0;
  if (!end_ && waitpid(pid_, &status, WNOHANG) == pid_) end_ = ProcessEndOf(status);
  return end_;
}

absl::optional<int> ChildProcess::exit_code() {
  if (!end()) return absl::nullopt;
  return end_->shell_code();
}

absl::StatusOr<int> ChildProcess::Wait(absl::Time deadline) {
  while (!exit_code()) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat("process ", pid_, " (", name_, ") still runs"));
    }
    pollfd ended = {descriptor_, POLLIN, 0};
    poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  }
  return end_->shell_code();
}

}  // namespace optshard
