#include "examples/job_services.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/optional.h"
#include "common/process/find_program.h"

namespace optshard {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kStart = absl::Seconds(10);
// How long a terminated process may take to end.
constexpr absl::Duration kTermination = absl::Seconds(5);

// Waits until a process that has just been started is `ready`. UNAVAILABLE where it ends instead;
// DEADLINE_EXCEEDED saying what it has `not_done`.
absl::Status WaitUntil(const std::function<bool()>& ready, ChildProcess& process,
                       const std::string& name, const std::string& not_done,
                       const std::function<absl::Status()>& interrupted) {
  const absl::Time deadline = absl::Now() + kStart;
  while (absl::Now() < deadline) {
    if (ready()) return absl::OkStatus();
    if (absl::Status status = interrupted(); !status.ok()) return status;
    if (absl::optional<int> code = process.exit_code()) {
      return absl::UnavailableError(absl::StrCat(name, " ended at once with exit code ", *code));
    }
    absl::SleepFor(absl::Milliseconds(2));
  }
  return absl::DeadlineExceededError(
      absl::StrCat(name, " ", not_done, " within ", absl::FormatDuration(kStart)));
}

void Terminate(std::unique_ptr<ChildProcess> process) {
  if (process == nullptr) return;
  process->Signal(SIGTERM);
  // The destructor kills a process that does not end in time.
  process->Wait(absl::Now() + kTermination).IgnoreError();
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobServices>> JobServices::Start(
    const Options& options, const std::function<absl::Status()>& interrupted) {
  std::unique_ptr<JobServices> services(new JobServices());
  if (services->scratch_.path().empty()) {
    return absl::UnavailableError(
        absl::StrCat("no directory can be made in ", fs::temp_directory_path().string()));
  }
  absl::Status started = services->StartCoordinator(options, interrupted);
  if (started.ok() && options.shard_server) started = services->StartServer(options, interrupted);
  if (!started.ok()) return started;
  return services;
}

JobServices::~JobServices() {
  Terminate(std::move(server_));
  Terminate(std::move(coordinator_));
}

absl::Status JobServices::StartCoordinator(const Options& options,
                                           const std::function<absl::Status()>& interrupted) {
  absl::StatusOr<std::string> binary =
      FindOwnProgram("optshard-coordinator", "server/coordinator", options.coordinator_binary,
                     "coordinator-binary");
  if (!binary.ok()) return binary.status();
  const fs::path port_file = scratch_.path() / "port";
  ChildProcess::Options child;
  child.command = {*binary, "--listen=127.0.0.1:0", absl::StrCat("--job=", options.job),
                   absl::StrCat("--world-size=", options.world_size),
                   absl::StrCat("--port-file=", port_file.string()),
                   // Shorter than the ranks' own, so that all are told the same: who is missing.
                   "--join-timeout=50s", absl::StrCat("--log-level=", options.log_level)};
  absl::StatusOr<std::unique_ptr<ChildProcess>> process = ChildProcess::Start(child);
  if (!process.ok()) return process.status();
  coordinator_ = *std::move(process);
  std::string port;
  absl::Status started =
      WaitUntil([&] { return static_cast<bool>(std::ifstream(port_file) >> port); }, *coordinator_,
                "the coordinator", absl::StrCat("has not written its port to ", port_file.string()),
                interrupted);
  if (started.ok()) coordinator_address_ = absl::StrCat("127.0.0.1:", port);
  return started;
}

// Waits until the server listens: trainers would try for a long time to reach a server that cannot
// start.
absl::Status JobServices::StartServer(const Options& options,
                                      const std::function<absl::Status()>& interrupted) {
  absl::StatusOr<std::string> binary =
      FindOwnProgram("optshard-server", "server/node", options.server_binary, "server-binary");
  if (!binary.ok()) return binary.status();
  const std::string socket = (scratch_.path() / "shards.sock").string();
  ChildProcess::Options child;
  child.command = {*binary, absl::StrCat("--job=", options.job),
                   absl::StrCat("--node-ranks=0-", options.world_size - 1),
                   absl::StrCat("--coordinator=", coordinator_address_),
                   absl::StrCat("--socket=", socket),
                   // Shorter than the time after which it is killed.
                   absl::StrCat("--drain-timeout=", absl::FormatDuration(kTermination / 2)),
                   absl::StrCat("--log-level=", options.log_level)};
  absl::StatusOr<std::unique_ptr<ChildProcess>> process = ChildProcess::Start(child);
  if (!process.ok()) return process.status();
  server_ = *std::move(process);
  attach_ = absl::StrCat("unix:", socket);
  return WaitUntil([&] { return fs::exists(socket); }, *server_, "the shard server",
                   absl::StrCat("does not listen at ", socket), interrupted);
}

}  // namespace optshard
