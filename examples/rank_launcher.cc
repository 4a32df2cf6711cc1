#include "examples/rank_launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/process/child_process.h"
#include "examples/rank_link.h"

namespace optshard {
namespace {

namespace fs = std::filesystem;

// How long the other ranks may print errors after one has failed, and how long a terminated process
// may take to end.
constexpr absl::Duration kLastWords = absl::Seconds(10);
constexpr absl::Duration kTermination = absl::Seconds(3);

// Makes SIGINT and SIGTERM readable from a descriptor, until the end of its life.
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
  bool replaced = false;  // this is a successor already

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
    for (Child& rank : ranks_) {
      if (rank.link >= 0) close(rank.link);
    }
  }

  absl::Status Start(const Options& options) {
    absl::StatusOr<std::unique_ptr<JobServices>> services =
        JobServices::Start(options.services, [this] { return signals_.Check(); });
    if (!services.ok()) return services.status();
    services_ = *std::move(services);
    command_ = {fs::read_symlink("/proc/self/exe").string(),
                absl::StrCat("--coordinator=", services_->coordinator()),
                absl::StrCat("--attach=", services_->attach()),
                absl::StrCat("--world-size=", options.services.world_size), "--launched"};
    command_.insert(command_.end(), options.arguments.begin(), options.arguments.end());
    ranks_.resize(options.services.world_size);
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (absl::Status started = StartRank(rank, {}); !started.ok()) return started;
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
  absl::Status StartRank(size_t rank, const std::vector<std::string>& more) {
    int link[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link) != 0) {
      return absl::InternalError(absl::StrCat("socketpair(): ", std::strerror(errno)));
    }
    if (ranks_[rank].link >= 0) close(ranks_[rank].link);
    ranks_[rank].link = link[0];
    ChildProcess::Options child;
    child.command = command_;
    child.command.push_back(absl::StrCat("--rank=", rank));
    child.command.insert(child.command.end(), more.begin(), more.end());
    child.link = link[1];
    absl::StatusOr<std::unique_ptr<ChildProcess>> process = ChildProcess::Start(child);
    close(link[1]);
    if (!process.ok()) return process.status();
    ranks_[rank].process = *std::move(process);
    return absl::OkStatus();
  }

  // Waits until no rank is `waiting`. A rank that ends too early, or with an error, is an error.
  template <typename Waiting>
  absl::Status Wait(absl::Time deadline, const Waiting& waiting, const char* what) {
    absl::Status failure;
    while (true) {
      for (Child& rank : ranks_) rank.Receive();
      std::vector<size_t> late;
      for (size_t i = 0; i < ranks_.size(); ++i) {
        absl::optional<int> code = ranks_[i].process->exit_code();
        if (failure.ok() && code == RankLink::kReplaceMe && !ranks_[i].replaced) {
          ranks_[i].replaced = true;
          if (absl::Status started = StartRank(i, {"--successor"}); !started.ok()) return started;
          code = absl::nullopt;
        }
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
    const absl::Time deadline = absl::Now() + kTermination;
    for (Child& rank : ranks_) {
      if (rank.process != nullptr) rank.process->Signal(SIGTERM);
    }
    for (Child& rank : ranks_) {
      // The destructor kills a process that does not end in time.
      if (rank.process != nullptr) rank.process->Wait(deadline).IgnoreError();
    }
  }

  const TerminationSignals signals_;
  std::unique_ptr<JobServices> services_;
  std::vector<std::string> command_;  // the part that is the same for all ranks
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
