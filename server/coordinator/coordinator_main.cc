// optshard-coordinator: one job's coordinator as a program. SIGTERM and SIGINT end it; with
// --exit-when-done so does the end of the job. That all shard servers were killed is not the end,
// for they may be about to come back with their state (--resume-grace).
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/cli/command_line.h"
#include "common/cli/log_level_option.h"
#include "common/log.h"
#include "common/port_file.h"
#include "common/rpc/probe_server_rpc.h"
#include "server/coordinator/coordinator_server.h"

namespace optshard {
namespace {

struct Flags {
  Flags() { server.coordinator.group.resume_grace = absl::Seconds(10); }

  CoordinatorServer::Options server;
  std::string probe_listen;
  std::string port_file;
  bool exit_when_done = false;
  std::string log_level = "info";
};

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line({"optshard-coordinator",
                    "The coordinator of one training job. It decides who takes part and who owns "
                    "what, notices which ranks are lost, and tells all others. Start one for each "
                    "job, before its shard servers and trainers.",
                    {"optshard-coordinator --world-size=2 --listen=127.0.0.1:4700",
                     "optshard-coordinator --world-size=16 --listen=0.0.0.0:4700 --exit-when-done",
                     "optshard-coordinator --world-size=16 --checkpoint-dir=/checkpoints/run-7 "
                     "--checkpoint-every=1000 --keep-last=3"}});
  auto& group = flags.server.coordinator.group;
  line.Group("Job");
  line.Add("world-size", &group.world_size, "how many ranks the job has").AtLeast(1).Required();
  line.Add("job", &group.job, "name of the job; members of another one are refused").Value("NAME");
  line.Add("join-timeout", &group.join_timeout,
           "how long after the first rank the last one may join");
  line.Add("lease", &group.liveness.lease,
           "silence longer than this counts as a rank's death; at least 5 ms a rank, since the "
           "ranks speak more rarely where there are many");
  line.Group("Network");
  line.Add("listen", &flags.server.listen, "address to listen at; port 0 is any free one")
      .Value("HOST:PORT");
  line.Add("probe-listen", &flags.probe_listen,
           "address of another gRPC port, with nothing but health: \"liveness\" while leases and "
           "timeouts are checked, \"readiness\" while it listens")
      .Value("HOST:PORT")
      .Default("none");
  line.Add("port-file", &flags.port_file, "file to write the port to, once it listens")
      .Value("PATH")
      .Default("none");
  auto& checkpoints = flags.server.checkpoints;
  line.Group("Checkpoints");
  line.Add(
          "checkpoint-dir", &checkpoints.directory,
          "directory of checkpoints, where a request names none; every process of the job sees the "
          "same files there")
      .Value("DIR")
      .Default("none");
  line.Add("checkpoint-every", &checkpoints.every,
           "save a checkpoint of each optimizer after about so many steps: at the first one that "
           "ends once a multiple of it is finished; 0: only when asked to");
  line.Add("keep-last", &checkpoints.prune.keep_last,
           "how many of the newest checkpoints of each optimizer stay in --checkpoint-dir, beside "
           "those with a label; 0: all")
      .AtLeast(0);
  line.Add("keep-every", &checkpoints.prune.keep_every,
           "with --keep-last: older checkpoints whose step is a multiple of it stay, too; 0: none");
  line.Group("End");
  line.Add("exit-when-done", &flags.exit_when_done,
           "exit once all optimizers are finished or failed and all ranks have left; after a "
           "failure only once --resume-grace is over. SIGTERM and SIGINT end the program in any "
           "case");
  line.Add("resume-grace", &group.resume_grace,
           "with --exit-when-done: how long to wait after a failure, once no rank is in any more, "
           "for shard servers that are started again and bring their state back");
  line.Group("Messages");
  AddLogLevelOption(line, &flags.log_level);
  return line;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "optshard-coordinator: %s\n", status.ToString().c_str());
  return 1;
}

// Waits for SIGTERM or SIGINT or, if asked to, for the end of all work; then stops the server.
void ServeUntilTheEnd(const sigset_t& signals, CoordinatorServer& server, bool exit_when_done) {
  std::thread until_done;
  if (exit_when_done) {
    // It ends this program as somebody else would, so that one wait is enough.
    until_done = std::thread([&server] {
      if (server.WaitUntilDone(absl::InfiniteDuration())) kill(getpid(), SIGTERM);
    });
  }
  while (sigwaitinfo(&signals, nullptr) < 0) {
  }
  server.Stop(absl::Seconds(1));
  if (until_done.joinable()) until_done.join();
}

// Null where no probes are wanted.
absl::StatusOr<std::unique_ptr<ProbeServer>> StartProbes(const Flags& flags) {
  if (flags.probe_listen.empty()) return nullptr;
  ProbeServer::Options options;
  options.listen = flags.probe_listen;
  return ProbeServer::Start(options);
}

int Main(const Flags& flags) {
  // As Debian builds Abseil, every lock looks for deadlocks. With many members that would take a
  // fifth of the time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const absl::Status level = SetLogLevel(flags.log_level);
  if (!level.ok()) return Fail(level);

  // Before any thread starts, so that all inherit it and only ServeUntilTheEnd takes the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const absl::StatusOr<std::unique_ptr<ProbeServer>> started = StartProbes(flags);
  if (!started.ok()) return Fail(started.status());
  ProbeServer* const probes = started->get();
  CoordinatorServer::Options options = flags.server;
  if (probes != nullptr) options.on_tick = [probes] { probes->Beat(); };
  const auto server = CoordinatorServer::Start(options);
  if (!server.ok()) return Fail(server.status());
  if (!flags.port_file.empty()) {
    const absl::Status written = WritePortFile(flags.port_file, (*server)->port());
    if (!written.ok()) return Fail(written);
  }
  LogContext context;
  context.role = "coordinator";
  context.job = flags.server.coordinator.group.job;
  Log(LogLevel::kInfo, context, "listening at %s, world size %d", (*server)->address(),
      flags.server.coordinator.group.world_size);

  if (probes != nullptr) probes->SetReady(true);

  ServeUntilTheEnd(signals, **server, flags.exit_when_done);
  Log(LogLevel::kInfo, context, "stopped");
  return 0;
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  optshard::Flags flags;
  const auto end = optshard::CommandLineOf(flags).ParseOrEnd(argc, argv);
  return end ? *end : optshard::Main(flags);
}
