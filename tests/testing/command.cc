#include "tests/testing/command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "absl/time/clock.h"

namespace optshard::testing {

std::string Command::Runfile(const std::string& path) {
  return std::filesystem::absolute(path).string();
}

Command::Command(const std::vector<std::string>& command) {
  int output[2] = {-1, -1};
  if (pipe2(output, O_CLOEXEC) != 0) return;
  descriptor_ = output[0];
  ChildProcess::Options options;
  options.command = command;
  options.output = output[1];
  absl::StatusOr<std::unique_ptr<ChildProcess>> process = ChildProcess::Start(options);
  close(output[1]);
  process_ = std::move(process).value();
}

Command::~Command() { close(descriptor_); }

bool Command::ReadMore(absl::Time deadline) {
  pollfd readable = {descriptor_, POLLIN, 0};
  const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
  if (poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) <= 0) return false;
  char buffer[4096];
  const ssize_t count = read(descriptor_, buffer, sizeof buffer);
  if (count > 0) output_.append(buffer, count);
  return count > 0;
}

bool Command::WaitForOutput(const std::string& text, absl::Time deadline) {
  while (output_.find(text) == std::string::npos) {
    if (!ReadMore(deadline)) return false;
  }
  return true;
}

absl::StatusOr<int> Command::Wait(absl::Time deadline) {
  while (ReadMore(deadline)) {
  }
  return process_->Wait(deadline);
}

void AdoptOrphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

bool WaitForNoChildren(absl::Time deadline) {
  while (true) {
    const pid_t ended = waitpid(-1, nullptr, WNOHANG);
    if (ended < 0 && errno == ECHILD) return true;
    if (ended > 0) continue;
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
}

}  // namespace optshard::testing
