#include "server/node/drain_command.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/cli/command_line.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/link/local_socket.h"
#include "common/link/process_handle.h"

namespace optshard {
namespace {

constexpr char kProgram[] = "optshard-server --drain";

struct Flags {
  bool drain = false;  // is given, or this would not run
  std::string socket;
  absl::Duration timeout = absl::Seconds(30);
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line({kProgram,
                    "Ends the shard server that listens at a socket, as SIGTERM does, and waits "
                    "until it has ended: no trainer is let in, the step under way ends, and the "
                    "ranks leave the job.",
                    {"optshard-server --drain --socket=/run/user/1000/optshard"}});
  line.Add("socket", &flags.socket, "the server's --socket").Value("PATH").Required();
  line.Add("timeout", &flags.timeout,
           "how long to wait for the end; more than the server's --drain-timeout");
  line.Add("drain", &flags.drain, "this page's command").Hidden();
  return line;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", kProgram, status.ToString().c_str());
  return 1;
}

}  // namespace

absl::StatusOr<int> DrainServer(const std::string& socket, absl::Duration timeout) {
  const absl::Time deadline = Clock::Monotonic().Now() + timeout;
  absl::StatusOr<std::unique_ptr<LocalSocket>> connected =
      LocalSocket::Connect(socket, absl::InfinitePast());
  if (!connected.ok()) return connected.status();
  const absl::StatusOr<PeerCredentials> server = (*connected)->Peer();
  if (!server.ok()) return server.status();
  const absl::StatusOr<ProcessHandle> process = ProcessHandle::Open(server->pid);
  if (!process.ok()) return errors::WithContext(process.status(), "ending the shard server");
  // It listens at this moment, so the handle is its own.
  if (syscall(SYS_pidfd_send_signal, process->fd(), SIGTERM, nullptr, 0) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot end process ", server->pid));
  }
  // A trainer that never says what it wants would be waited for.
  connected->reset();
  if (process->WaitUntilGone(deadline)) return server->pid;
  return absl::DeadlineExceededError(absl::StrCat(
      "the shard server at '", socket, "', process ", server->pid, ", has not ended within ",
      absl::FormatDuration(timeout), ": a step of its ranks may wait for another node"));
}

int RunDrain(int argc, char** argv) {
  Flags flags;
  const auto end = CommandLineOf(flags).ParseOrEnd(argc, argv);
  if (end) return *end;
  const absl::StatusOr<int> ended = DrainServer(flags.socket, flags.timeout);
  if (!ended.ok()) return Fail(ended.status());
  std::printf("the shard server, process %d, has ended\n", *ended);
  return 0;
}

}  // namespace optshard
