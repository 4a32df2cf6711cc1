// optshard-coordinator: one job's coordinator as a program. It ends by SIGTERM or SIGINT or, with
// --exit_when_done, with the job; not merely because all shard servers were killed, for they may be
// about to come back with their state (--resume_grace).
#include <pthread.h>

#include <csignal>
#include <cstdio>
#include <ctime>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "server/coordinator/coordinator_server.h"
#include "server/coordinator/port_file.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:0", "HOST:PORT to listen at; port 0: any free one");
ABSL_FLAG(std::string, job, "optshard", "name of the job; members of another one are refused");
ABSL_FLAG(int, world_size, 0, "how many ranks the job has (required)");
ABSL_FLAG(std::string, port_file, "", "file to write the port to, once it listens; empty: none");
ABSL_FLAG(absl::Duration, lease, absl::Seconds(5), "silence longer than this is a rank's death");
ABSL_FLAG(absl::Duration, join_timeout, absl::Seconds(60),
          "how long after the first rank the last one may join");
ABSL_FLAG(bool, exit_when_done, false,
          "exit once all optimizers are finished or failed and all ranks have left; after a "
          "failure only once --resume_grace is over");
ABSL_FLAG(absl::Duration, resume_grace, absl::Seconds(10),
          "with --exit_when_done: how long after a failure, once no rank is in any more, to wait "
          "for shard servers that are started again and bring their state back");
ABSL_FLAG(std::string, log_level, "info", "debug, info, warning, error or off");

namespace optshard {
namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "optshard-coordinator: %s\n", status.ToString().c_str());
  return 1;
}

// Waits for SIGTERM or SIGINT, or, if asked to, for the end of all work.
void WaitForTheEnd(const sigset_t& signals, CoordinatorServer& server, bool exit_when_done) {
  constexpr timespec kNow = {0, 0};
  while (!exit_when_done) {
    if (sigwaitinfo(&signals, nullptr) > 0) return;
  }
  while (!server.WaitUntilSettled(absl::Milliseconds(100))) {
    if (sigtimedwait(&signals, nullptr, &kNow) > 0) return;
  }
}

int Main() {
  const absl::Status level = SetLogLevel(absl::GetFlag(FLAGS_log_level));
  if (!level.ok()) return Fail(level);

  // Before any thread starts, so that all inherit it and only WaitForTheEnd takes the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  CoordinatorServer::Options options;
  options.listen = absl::GetFlag(FLAGS_listen);
  options.coordinator.group.job = absl::GetFlag(FLAGS_job);
  options.coordinator.group.world_size = absl::GetFlag(FLAGS_world_size);
  options.coordinator.group.join_timeout = absl::GetFlag(FLAGS_join_timeout);
  options.coordinator.group.liveness.lease = absl::GetFlag(FLAGS_lease);
  options.coordinator.group.resume_grace = absl::GetFlag(FLAGS_resume_grace);
  const auto server = CoordinatorServer::Start(options);
  if (!server.ok()) return Fail(server.status());

  const std::string port_file = absl::GetFlag(FLAGS_port_file);
  if (!port_file.empty()) {
    const absl::Status written = WritePortFile(port_file, (*server)->port());
    if (!written.ok()) return Fail(written);
  }
  LogContext context;
  context.role = "coordinator";
  context.job = options.coordinator.group.job;
  Log(LogLevel::kInfo, context, "listening at %s, world size %d", (*server)->address(),
      options.coordinator.group.world_size);

  WaitForTheEnd(signals, **server, absl::GetFlag(FLAGS_exit_when_done));
  (*server)->Stop(absl::Seconds(1));
  Log(LogLevel::kInfo, context, "stopped");
  return 0;
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Coordinates the ranks of one training job: who takes part, who owns what, who is lost.\n"
      "  optshard-coordinator --world_size=2 --listen=127.0.0.1:4700");
  const auto rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    std::fprintf(stderr, "optshard-coordinator: unexpected argument %s; see --help\n", rest[1]);
    return 1;
  }
  return optshard::Main();
}
