#include "examples/child_process.h"

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
                         pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent ended before the line above
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGCHLD}) ::signal(signal, SIG_DFL);
  if (options.output >= 0) {
    dup2(options.output, STDOUT_FILENO);
    dup2(options.output, STDERR_FILENO);
  }
  if (options.link == kLinkDescriptor) {
    fcntl(kLinkDescriptor, F_SETFD, 0);
  } else if (options.link >= 0) {
    dup2(options.link, kLinkDescriptor);
  }
  execv(arguments[0], arguments);
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const Options& options) {
  const std::string& name = options.command.front();
  if (access(name.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(name, " cannot be run: ", std::strerror(errno)));
  }
  std::vector<char*> arguments;
  for (const std::string& argument : options.command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Failed("fork", name);
  if (pid == 0) Become(options, arguments.data(), parent);
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  auto child = std::unique_ptr<ChildProcess>(new ChildProcess(pid, descriptor, name));
  if (descriptor < 0) return Failed("pidfd_open", name);
  return child;
}

ChildProcess::~ChildProcess() {
  Signal(SIGKILL);
  if (!exit_code_) waitpid(pid_, nullptr, 0);
  if (descriptor_ >= 0) close(descriptor_);
}

void ChildProcess::Signal(int signal) {
  if (!exit_code()) kill(pid_, signal);
}

absl::optional<int> ChildProcess::exit_code() {
  int status = 0;
  if (!exit_code_ && waitpid(pid_, &status, WNOHANG) == pid_) {
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return exit_code_;
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
  return *exit_code_;
}

}  // namespace optshard
