#include "server/node/keeper.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/optional.h"
#include "common/clock.h"
#include "common/link/poll_until.h"
#include "common/link/unique_fd.h"
#include "common/log.h"
#include "common/process/process_end.h"
#include "server/node/keeper_line.h"
#include "server/node/restart_pauses.h"

namespace optshard {
namespace {

constexpr size_t kMaxUnits = 4096;
// Descriptors that stay free for the keeper: a line for the next server, and some to receive.
constexpr rlim_t kSpareDescriptors = 16;
constexpr size_t kNameBytes = 16;  // of a process, for prctl

LogContext Who() {
  LogContext context;
  context.role = "keeper";
  return context;
}

// Bound to the one thread of its process.
class Keeper {
 public:
  explicit Keeper(const KeeperOptions& options)
      : options_(options), pauses_(options.first_pause, options.longest_pause, options.long_life) {}

  int Run();

 private:
  absl::Status Prepare();
  absl::Status StartServer();
  [[noreturn]] void Serve(UniqueFd line) noexcept;

  int WaitForEnd();
  void TakeSignals();
  absl::optional<int> Reap();
  bool Pause(absl::Duration pause);

  void AnswerServer();
  absl::Status Do(const KeeperRequest& request, Packet packet);
  absl::Status Keep(const KeeperRequest& request, Packet packet);
  int64_t KeptBytes() const;

  const KeeperOptions& options_;
  const pid_t process_ = getpid();
  RestartPauses pauses_;
  std::map<std::string, std::vector<UniqueFd>> units_;

  UniqueFd signals_;
  sigset_t mask_at_call_;
  struct sigaction child_action_at_call_;
  char name_at_call_[kNameBytes] = {};

  pid_t server_ = -1;  // -1: none, or reaped
  UniqueFd line_;      // to the server; none once it has closed its end
  int life_ = 0;
  absl::Time started_;
  bool stopping_ = false;
};

int Keeper::Run() {
  absl::Status status = Prepare();
  if (!status.ok()) {
    Log(LogLevel::kError, Who(), "%s", status.ToString());
    return 1;
  }
  int code = 1;
  while (true) {
    status = StartServer();
    std::string what;
    if (status.ok()) {
      const pid_t server = server_;
      const int end = WaitForEnd();
      // What it asked for and did not live to see answered was done, or is dropped here.
      line_ = UniqueFd();
      if (WIFEXITED(end)) {
        code = WEXITSTATUS(end);
        if (code == 0) return code;
        what = absl::StrFormat("shard server %d (life %d) gave up with exit code %d", server, life_,
                               code);
      } else {
        code = 128 + WTERMSIG(end);
        what = absl::StrFormat("shard server %d (life %d) died of %s", server, life_,
                               SignalName(WTERMSIG(end)));
      }
    } else {
      what = absl::StrCat("cannot start a shard server: ", status.ToString());
    }
    if (units_.empty() || stopping_) {
      Log(LogLevel::kError, Who(), "%s; no other is started: %s", what,
          stopping_ ? "it was to end" : "nothing is kept for it");
      return code;
    }
    const absl::Duration pause = pauses_.Next(Clock::Monotonic().Now() - started_);
    Log(LogLevel::kWarning, Who(), "%s; %d units of %d bytes are kept for the next one, %s", what,
        units_.size(), KeptBytes(),
        pause > absl::ZeroDuration() ? absl::StrCat("in ", absl::FormatDuration(pause))
                                     : "at once");
    if (!Pause(pause)) {
      Log(LogLevel::kWarning, Who(),
          "asked to end while no shard server ran: what was kept is lost");
      return code;
    }
  }
}

absl::Status Keeper::Prepare() {
  sigset_t taken;
  sigemptyset(&taken);
  sigaddset(&taken, SIGTERM);
  sigaddset(&taken, SIGINT);
  sigaddset(&taken, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &taken, &mask_at_call_);
  // Who started this process may have it ignored: then the kernel would reap the server.
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &action, &child_action_at_call_);
  signals_ = UniqueFd(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return absl::ErrnoToStatus(errno, "cannot make a signalfd");
  prctl(PR_GET_NAME, name_at_call_);
  prctl(PR_SET_NAME, "optshard-keeper");
  return absl::OkStatus();
}

absl::Status Keeper::StartServer() {
  started_ = Clock::Monotonic().Now();
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "no line to it (socketpair)");
  }
  UniqueFd ours(ends[0]);
  UniqueFd servers(ends[1]);
  // What is buffered would be written by both.
  std::fflush(nullptr);
  const pid_t server = fork();
  if (server < 0) return absl::ErrnoToStatus(errno, "fork");
  ++life_;
  if (server == 0) {
    ours = UniqueFd();
    Serve(std::move(servers));
  }
  server_ = server;
  line_ = std::move(ours);
  return absl::OkStatus();
}

// An exception would unwind to main's frames, which are the keeper's: it ends the server here.
void Keeper::Serve(UniqueFd line) noexcept {
  signals_ = UniqueFd();
  prctl(PR_SET_NAME, name_at_call_);
  sigaction(SIGCHLD, &child_action_at_call_, nullptr);
  pthread_sigmask(SIG_SETMASK, &mask_at_call_, nullptr);
  int code;
  {
    // The fork has duplicated what the keeper holds: these are the server's own.
    KeeperLink::Options options;
    options.line = std::move(line);
    for (auto& [name, descriptors] : units_) {
      options.inherited.push_back({name, std::move(descriptors)});
    }
    units_.clear();
    options.life = life_;
    options.keeper = process_;
    options.answer_timeout = options_.answer_timeout;
    KeeperLink link(std::move(options));
    code = options_.serve(link);
  }
  std::exit(code);
}

// The wait status of the server, which is reaped then.
int Keeper::WaitForEnd() {
  while (true) {
    pollfd watched[] = {{signals_.get(), POLLIN, 0}, {line_.get(), POLLIN, 0}};
    PollUntil(absl::MakeSpan(watched), absl::InfiniteFuture());
    if (watched[1].revents != 0) AnswerServer();
    if (watched[0].revents == 0) continue;
    TakeSignals();
    const absl::optional<int> end = Reap();
    if (end) return *end;
  }
}

void Keeper::TakeSignals() {
  signalfd_siginfo signal;
  while (read(signals_.get(), &signal, sizeof(signal)) == sizeof(signal)) {
    if (signal.ssi_signo == SIGCHLD) continue;
    stopping_ = true;
    // Not reaped, so the number is still the server's.
    if (server_ > 0) kill(server_, SIGTERM);
  }
}

absl::optional<int> Keeper::Reap() {
  absl::optional<int> end;
  int status = 0;
  pid_t reaped;
  while ((reaped = waitpid(-1, &status, WNOHANG)) > 0) {
    if (reaped != server_) continue;
    end = status;
    server_ = -1;
  }
  return end;
}

// False where the keeper is to end. Looks once where there is no pause: a terminal's SIGINT goes to
// both processes, and the server may be reaped first.
bool Keeper::Pause(absl::Duration pause) {
  const absl::Time until = Clock::Monotonic().Now() + pause;
  while (!stopping_ && PollUntil(signals_.get(), POLLIN, until)) {
    TakeSignals();
    Reap();
  }
  return !stopping_;
}

void Keeper::AnswerServer() {
  pollfd line = {line_.get(), POLLIN, 0};
  absl::StatusOr<Packet> packet = ReceivePacket(line_.get(), absl::InfinitePast());
  if (absl::IsDeadlineExceeded(packet.status())) return;
  if (!packet.ok()) {
    // An empty packet reads like the end. After the end there is nothing more to watch for.
    if (poll(&line, 1, 0) > 0 && (line.revents & (POLLHUP | POLLERR)) != 0) line_ = UniqueFd();
    return;
  }
  KeeperAnswer answer;
  const absl::StatusOr<KeeperRequest> request = DecodeRequest(packet->bytes);
  if (request.ok()) {
    answer.number = request->number;
    answer.status = Do(*request, *std::move(packet));
  } else {
    answer.status = request.status();
  }
  if (!answer.status.ok()) {
    Log(LogLevel::kWarning, Who(), "refuses what shard server %d asks for: %s", server_,
        answer.status.ToString());
  }
  // Never waits: a server that takes no answers does not get them.
  (void)SendPacket(line_.get(), Encode(answer), {}, absl::InfinitePast()).ok();
}

absl::Status Keeper::Do(const KeeperRequest& request, Packet packet) {
  absl::Status status = CheckKeptName(request.name);
  if (!status.ok()) return status;
  if (request.kind == KeeperRequest::Kind::kKeep) return Keep(request, std::move(packet));
  units_.erase(request.name);
  return absl::OkStatus();
}

absl::Status Keeper::Keep(const KeeperRequest& request, Packet packet) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  bool too_many = packet.descriptors_lost;
  for (const UniqueFd& each : packet.descriptors) {
    // The lowest free numbers are given: below these there is nothing free.
    too_many |= static_cast<rlim_t>(each.get()) + kSpareDescriptors >= limit.rlim_cur;
  }
  if (too_many) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the keeper may open ", limit.rlim_cur, " files and holds ", units_.size(),
                     " units already; raise the limit (ulimit -n) where the server is started"));
  }
  absl::Status status = CheckKeptDescriptors(request.name, packet.descriptors.size());
  if (!status.ok()) return status;
  if (units_.size() >= kMaxUnits && units_.count(request.name) == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the keeper holds ", units_.size(), " units, as many as it may: forget some"));
  }
  units_[request.name] = std::move(packet.descriptors);
  return absl::OkStatus();
}

int64_t Keeper::KeptBytes() const {
  int64_t bytes = 0;
  for (const auto& [name, descriptors] : units_) {
    for (const UniqueFd& each : descriptors) {
      struct stat file = {};
      if (fstat(each.get(), &file) == 0) bytes += file.st_size;
    }
  }
  return bytes;
}

}  // namespace

int RunKeeper(const KeeperOptions& options) { return Keeper(options).Run(); }

}  // namespace optshard
