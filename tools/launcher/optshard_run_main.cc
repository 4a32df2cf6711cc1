// optshard-run: starts a job's processes on one node, each of several or the only one.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/cli/command_line.h"
#include "common/cli/log_level_option.h"
#include "common/process/find_program.h"
#include "common/process/scratch_directory.h"
#include "tools/launcher/host_port.h"
#include "tools/launcher/launch_guard.h"
#include "tools/launcher/launch_loop.h"
#include "tools/launcher/launch_plan.h"

namespace optshard {
namespace {

constexpr int kUsageError = 2;

struct Flags {
  LaunchFlags launch;
  std::string coordinator_binary;
  std::string server_binary;
  absl::Duration grace = absl::Seconds(10);
  absl::Duration start_timeout = absl::Seconds(60);
};

CommandLine CommandLineOf(Flags& flags) {
  LaunchFlags& launch = flags.launch;
  CommandLine line(
      {"optshard-run",
       "Starts a training job: its coordinator, a shard server that keeps the optimizer state of "
       "this node's ranks, and the trainers, with the variables that torchrun sets. It shows what "
       "they write, line by line, and ends all of them when one fails. Where there are several "
       "nodes, "
       "start it on each.",
       {"optshard-run -n 2 -- bazel-bin/examples/quickstart/trainer",
        "optshard-run -n 4 --max-restarts=3 -- ./trainer --epochs=5",
        "optshard-run -n 4 --nnodes=2 --node-rank=1 --coordinator=10.0.0.1:4700 -- ./trainer"}});
  line.AddCommand("PROGRAM", &launch.program,
                  "what each rank runs, and its arguments: a path, or a name that is in PATH");
  line.Group("Ranks");
  line.Add("nproc-per-node", &launch.ranks, "how many ranks this node runs, and each other one")
      .Short('n')
      .AtLeast(1)
      .Default("what torchrun's variables or Slurm's say");
  line.Add("nnodes", &launch.nodes, "how many nodes the job has")
      .AtLeast(1)
      .Default("what torchrun's variables, Slurm or mpirun say, else 1");
  line.Add("node-rank", &launch.node_rank, "which of the nodes this is; node 0 has the coordinator")
      .AtLeast(0)
      .Default("what torchrun's variables, Slurm or mpirun say");
  line.Add("coordinator", &launch.coordinator,
           "where node 0's coordinator listens: an address that all nodes reach, and the same on "
           "each")
      .Value("HOST:PORT")
      .Default(
          "OPTSHARD_COORDINATOR, else MASTER_ADDR and the port after MASTER_PORT; for one node "
          "any free port of the loopback");
  line.Add("master-port", &launch.master_port,
           "the trainers' MASTER_PORT; nothing listens there but what they start")
      .AtLeast(1)
      .Default("any free one; for several nodes that of the environment, else 29500");
  line.Add("job", &launch.job, "name of the job")
      .Value("NAME")
      .Default("OPTSHARD_JOB, else optshard");
  line.Group("State");
  line.Add("server", &launch.server,
           "keep the optimizer state in a shard server; otherwise each trainer keeps its own");
  line.Add("max-restarts", &launch.max_restarts,
           "how many trainers of this node may be replaced, in all: the successor goes on with the "
           "state that the shard server has. A failure beyond that ends the job")
      .AtLeast(0);
  line.Group("End");
  line.Add("grace", &flags.grace,
           "how long trainers may take to end after the signal that ends them; then all processes "
           "are killed");
  line.Add("start-timeout", &flags.start_timeout,
           "how long the coordinator, and then the shard server, may take to be ready");
  line.Group("Services");
  line.Add("server-options", &launch.server_options,
           "more options of optshard-server, separated by spaces");
  line.Add("coordinator-options", &launch.coordinator_options,
           "more options of optshard-coordinator, separated by spaces");
  line.Add("coordinator-binary", &flags.coordinator_binary, "optshard-coordinator")
      .Value("PATH")
      .Default("beside this program");
  line.Add("server-binary", &flags.server_binary, "optshard-server")
      .Value("PATH")
      .Default("beside this program");
  line.Group("Messages");
  AddLogLevelOption(line, &launch.log_level)
      .Default("OPTSHARD_LOG_LEVEL of the environment, else warning");
  return line;
}

const char* FromProcess(const char* name) { return std::getenv(name); }

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "optshard-run: %s\n", std::string(status.message()).c_str());
  return code;
}

// Finds all programs before anything is started.
absl::Status FindPrograms(const Flags& flags, LaunchPlan& plan, LaunchPlaces& places) {
  const char* const path = std::getenv("PATH");
  absl::StatusOr<std::string> program =
      FindProgram(plan.program.front(), path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path);
  if (!program.ok()) return program.status();
  plan.program.front() = *std::move(program);
  absl::StatusOr<std::string> coordinator = FindOwnProgram(
      "optshard-coordinator", "server/coordinator", flags.coordinator_binary, "coordinator-binary");
  if (!coordinator.ok()) return coordinator.status();
  places.coordinator_binary = *std::move(coordinator);
  absl::StatusOr<std::string> server =
      FindOwnProgram("optshard-server", "server/node", flags.server_binary, "server-binary");
  if (!server.ok()) return server.status();
  places.server_binary = *std::move(server);
  return absl::OkStatus();
}

int Main(const Flags& flags) {
  absl::StatusOr<LaunchPlan> plan = MakeLaunchPlan(flags.launch, FromProcess);
  if (!plan.ok()) return Fail(plan.status(), kUsageError);
  LaunchLoop::Options options;
  absl::Status found = FindPrograms(flags, *plan, options.places);
  if (!found.ok()) return Fail(found, kUsageError);
  if (plan->master_port == 0) {
    const absl::StatusOr<int> port = FreePort();
    if (!port.ok()) return Fail(port.status(), EXIT_FAILURE);
    plan->master_port = *port;
  }
  const ScratchDirectory folder;
  if (folder.path().empty()) {
    return Fail(absl::UnavailableError("no folder can be made in " +
                                       std::filesystem::temp_directory_path().string() +
                                       " for the sockets of the job; TMPDIR names another one"),
                EXIT_FAILURE);
  }
  options.places.coordinator_port_file = folder.path() / "coordinator.port";
  options.places.server_port_file = folder.path() / "server.port";
  options.places.socket = folder.path() / "server.sock";
  options.plan = *std::move(plan);
  options.grace = flags.grace;
  options.start_timeout = flags.start_timeout;
  GuardedLaunch launch;
  launch.work = [&options](int guard) {
    options.guard = guard;
    return LaunchLoop(std::move(options)).Run();
  };
  launch.clean = [&folder] {
    std::error_code ignored;
    std::filesystem::remove_all(folder.path(), ignored);
  };
  return RunGuarded(launch);
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  optshard::Flags flags;
  const auto end = optshard::CommandLineOf(flags).ParseOrEnd(argc, argv);
  return end ? *end : optshard::Main(flags);
}
