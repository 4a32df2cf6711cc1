#include "examples/rank_launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "examples/child_process.h"

namespace optshard {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kCoordinatorStart = absl::Seconds(10);
// How long the others may speak after a rank has ended badly, and how long a terminated process may
// take to end.
constexpr absl::Duration kLastWords = absl::Seconds(10);
constexpr absl::Duration kTermination = absl::Seconds(3);

absl::StatusOr<std::string> FindCoordinator(const std::string& given) {
  const fs::path self = fs::read_symlink("/proc/self/exe");
  const std::vector<fs::path> places =
      given.empty() ? std::vector<fs::path>{self.parent_path() / "optshard-coordinator",
                                            self.parent_path().parent_path() / "server" /
                                                "coordinator" / "optshard-coordinator"}
                    : std::vector<fs::path>{given};
  for (const fs::path& place : places) {
    if (access(place.c_str(), X_OK) == 0) return place.string();
  }
  return absl::NotFoundError(
      absl::StrCat("no coordinator to run at ", places.front().string(),
                   ": build it, or say where it is with --coordinator_binary=PATH"));
}

// A directory for the time of a scope.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string name = (fs::temp_directory_path() / "optshard-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// SIGINT and SIGTERM as a descriptor, as long as it lives.
class TerminationSignals {
 public:
  TerminationSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
    descriptor_ = signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~TerminationSignals() {
    close(descriptor_);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  int descriptor() const { return descriptor_; }

  absl::Status Check() const {
    signalfd_siginfo info;
    if (read(descriptor_, &info, sizeof info) != sizeof info) return absl::OkStatus();
    return absl::CancelledError(
        absl::StrCat("stopped by ", strsignal(static_cast<int>(info.ssi_signo))));
  }

 private:
  sigset_t set_;
  sigset_t before_;
  int descriptor_ = -1;
};

struct Child {
  std::unique_ptr<ChildProcess> process;
  int link = -1;
  std::string received;

  bool reported() const { return !received.empty() && received.back() == '\n'; }

  void Receive() {
    char buffer[4096];
    const ssize_t count = recv(link, buffer, sizeof buffer, MSG_DONTWAIT);
    if (count > 0) received.append(buffer, count);
  }
};

}  // namespace

class RankLauncher::Impl {
 public:
  ~Impl() {
    Terminate();
    for (Child& rank : ranks_) close(rank.link);
  }

  absl::Status Start(const Options& options) {
    absl::StatusOr<std::string> address = StartCoordinator(options);
    if (!address.ok()) return address.status();
    for (int rank = 0; rank < options.world_size; ++rank) {
      int link[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link) != 0) {
        return absl::InternalError(absl::StrCat("socketpair(): ", std::strerror(errno)));
      }
      ChildProcess::Options child;
      child.command = {fs::read_symlink("/proc/self/exe").string(),
                       absl::StrCat("--coordinator=", *address), absl::StrCat("--rank=", rank),
                       absl::StrCat("--world_size=", options.world_size), "--launched"};
      child.command.insert(child.command.end(), options.arguments.begin(), options.arguments.end());
      child.link = link[1];
      absl::StatusOr<std::unique_ptr<ChildProcess>> process = ChildProcess::Start(child);
      close(link[1]);
      ranks_.push_back({nullptr, link[0], ""});  // which closes its end of the link
      if (!process.ok()) return process.status();
      ranks_.back().process = *std::move(process);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> WaitForReports(absl::Time deadline) {
    const auto waiting = [](const Child& rank) { return !rank.reported(); };
    absl::Status status = Wait(deadline, waiting, "has not reported");
    if (!status.ok()) return status;
    std::vector<std::string> reports;
    for (const Child& rank : ranks_) reports.push_back(rank.received);
    return reports;
  }

  absl::Status Finish(absl::Time deadline) {
    for (Child& rank : ranks_) shutdown(rank.link, SHUT_WR);
    return Wait(
        deadline, [](Child& rank) { return !rank.process->exit_code(); }, "has not ended");
  }

 private:
  absl::StatusOr<std::string> StartCoordinator(const Options& options) {
    absl::StatusOr<std::string> binary = FindCoordinator(options.coordinator_binary);
    if (!binary.ok()) return binary.status();
    const ScratchDirectory scratch;
    const fs::path port_file = scratch.path() / "port";
    ChildProcess::Options child;
    child.command = {*binary, "--listen=127.0.0.1:0", absl::StrCat("--job=", options.job),
                     absl::StrCat("--world_size=", options.world_size),
                     absl::StrCat("--port_file=", port_file.string()),
                     // Before the ranks' own deadlines, so that all are told alike who is missing.
                     "--join_timeout=50s", absl::StrCat("--log_level=", options.log_level)};
    absl::StatusOr<std::unique_ptr<ChildProcess>> process = ChildProcess::Start(child);
    if (!process.ok()) return process.status();
    coordinator_ = *std::move(process);
    const absl::Time deadline = absl::Now() + kCoordinatorStart;
    while (absl::Now() < deadline) {
      std::string port;
      if (std::ifstream(port_file) >> port) return absl::StrCat("127.0.0.1:", port);
      if (absl::Status status = signals_.Check(); !status.ok()) return status;
      if (absl::optional<int> code = coordinator_->exit_code()) {
        return absl::UnavailableError(
            absl::StrCat("the coordinator ended at once with exit code ", *code));
      }
      absl::SleepFor(absl::Milliseconds(2));
    }
    return absl::DeadlineExceededError(absl::StrCat("the coordinator has not written its port to ",
                                                    port_file.string(), " within ",
                                                    absl::FormatDuration(kCoordinatorStart)));
  }

  // Until no rank is `waiting`; one that ends before its time, or badly, is an error.
  template <typename Waiting>
  absl::Status Wait(absl::Time deadline, const Waiting& waiting, const char* what) {
    absl::Status failure;
    while (true) {
      for (Child& rank : ranks_) rank.Receive();
      std::vector<size_t> late;
      for (size_t i = 0; i < ranks_.size(); ++i) {
        const absl::optional<int> code = ranks_[i].process->exit_code();
        if (failure.ok() && code && (*code != 0 || waiting(ranks_[i]))) {
          failure = absl::UnavailableError(absl::StrCat("rank ", i, " ended with exit code ", *code,
                                                        *code > 128 ? Signal(*code - 128) : ""));
          deadline = std::min(deadline, absl::Now() + kLastWords);
        }
        if (!code && (!failure.ok() || waiting(ranks_[i]))) late.push_back(i);
      }
      if (late.empty()) return failure;
      if (absl::Now() >= deadline) {
        if (!failure.ok()) return failure;
        return absl::DeadlineExceededError(
            absl::StrCat("rank ", absl::StrJoin(late, ", rank "), " ", what, " by the deadline"));
      }
      absl::Status signalled = Poll(late, deadline);
      if (!signalled.ok()) return signalled;
    }
  }

  static std::string Signal(int number) { return absl::StrCat(" (", strsignal(number), ")"); }

  absl::Status Poll(const std::vector<size_t>& ranks, absl::Time deadline) {
    std::vector<pollfd> events = {{signals_.descriptor(), POLLIN, 0}};
    for (const size_t rank : ranks) {
      events.push_back({ranks_[rank].process->descriptor(), POLLIN, 0});
      if (!ranks_[rank].reported()) events.push_back({ranks_[rank].link, POLLIN, 0});
    }
    const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
    poll(events.data(), events.size(), static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    return signals_.Check();
  }

  void Terminate() {
    std::vector<ChildProcess*> processes;
    for (Child& rank : ranks_) processes.push_back(rank.process.get());
    processes.push_back(coordinator_.get());
    const absl::Time deadline = absl::Now() + kTermination;
    for (ChildProcess* process : processes) {
      if (process != nullptr) process->Signal(SIGTERM);
    }
    for (ChildProcess* process : processes) {
      // Its destructor kills one that does not end by then.
      if (process != nullptr) process->Wait(deadline).IgnoreError();
    }
  }

  const TerminationSignals signals_;
  std::unique_ptr<ChildProcess> coordinator_;
  std::vector<Child> ranks_;
};

absl::StatusOr<std::unique_ptr<RankLauncher>> RankLauncher::Start(const Options& options) {
  auto impl = std::make_unique<Impl>();
  if (absl::Status status = impl->Start(options); !status.ok()) return status;
  return std::unique_ptr<RankLauncher>(new RankLauncher(std::move(impl)));
}

RankLauncher::RankLauncher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RankLauncher::~RankLauncher() = default;

absl::StatusOr<std::vector<std::string>> RankLauncher::WaitForReports(absl::Time deadline) {
  return impl_->WaitForReports(deadline);
}

absl::Status RankLauncher::Finish(absl::Time deadline) { return impl_->Finish(deadline); }

}  // namespace optshard
