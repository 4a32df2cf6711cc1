// optshard-server: the shard owners of a node's ranks, as a program beside the trainers.
#include <pthread.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/cli/command_line.h"
#include "common/cli/log_level_option.h"
#include "common/log.h"
#include "common/membership/coordinator_client_rpc.h"
#include "common/port_file.h"
#include "common/rpc/network_choice.h"
#include "server/node/attach_server.h"
#include "server/node/byte_size.h"
#include "server/node/keeper.h"
#include "server/node/keeper_link.h"
#include "server/node/node_owners.h"
#include "server/node/rank_set.h"
#include "server/shard/inspection/shard_owner_server.h"
#include "server/shard/inspection/shard_view_registry.h"

namespace optshard {
namespace {

constexpr timespec kLook = {0, 50'000'000};

struct Flags {
  NodeOwners::Options owners;
  std::string coordinator;
  std::string socket;
  std::string interface;
  std::string owner_listen = "127.0.0.1:0";
  std::string port_file;
  absl::Duration drain_timeout = absl::Seconds(10);
  bool keeper = true;
  std::string log_level = "info";
};

// Stores in `target` what `parse` makes of an option's text.
template <typename Parse, typename Target>
CommandOption::Parser Into(Target* target, Parse parse) {
  return [target, parse](const std::string& text) -> absl::Status {
    auto parsed = parse(text);
    if (!parsed.ok()) return parsed.status();
    *target = *std::move(parsed);
    return absl::OkStatus();
  };
}

CommandLine CommandLineOf(Flags& flags) {
  CommandLine line(
      {"optshard-server",
       "The shard owners of a node's ranks, in a process beside the trainers. It keeps the "
       "parameters, gradients and optimizer state of its ranks in memory and runs their optimizer "
       "steps; trainers attach to it at a Unix socket. Start one on each node, after the job's "
       "coordinator.",
       {"optshard-server --node-ranks=0-3 --coordinator=127.0.0.1:4700 "
        "--socket=/run/user/1000/optshard --memory-limit=8GiB"}});
  line.Group("Job");
  line.Add("node-ranks", Into(&flags.owners.ranks, ParseRankSet),
           "the ranks that may attach here, such as 0-3 or 0,2-5")
      .Value("RANKS")
      .Required();
  line.Add("job", &flags.owners.job, "name of the job; trainers of another one are refused")
      .Value("NAME");
  line.Add("coordinator", &flags.coordinator, "address of the job's coordinator")
      .Value("HOST:PORT")
      .Required();
  line.Group("Trainers");
  line.Add("socket", &flags.socket,
           "the Unix socket where trainers attach: a path, or @NAME for Linux's abstract names")
      .Value("PATH")
      .Required();
  line.Add("memory-limit", Into(&flags.owners.memory_limit_bytes, ParseByteSize),
           "most memory for parameters, gradients, optimizer state and snapshots of all ranks, "
           "such as "
           "8GiB")
      .Value("SIZE")
      .Default("what the cgroup and the machine leave");
  line.Add("snapshot-memory", Into(&flags.owners.snapshot_memory_bytes, ParseByteSize),
           "what each rank's snapshots may have of it for copies, taken when the rank starts")
      .Value("SIZE")
      .Default("as one needs, when the first is made");
  line.Add(
      "keeper", &flags.keeper,
      "fork a keeper, as the parent of the server: it holds what the ranks have in memory, and "
      "starts the server again when that was killed");
  line.Group("Network");
  line.Add("plane", Into(&flags.owners.plane, ParseHostPlaneKind),
           "data plane between the shard owners; auto is shared memory where all ranks of the job "
           "run on this host, else Gloo")
      .OneOf({"auto", "shm", "gloo"})
      .Default("auto");
  line.Add("interface", &flags.interface,
           "network interface or address of the data plane between hosts")
      .Value("NAME")
      .Default("the one towards the coordinator");
  line.Add("owner-listen", &flags.owner_listen,
           "address of the gRPC port: health, reflection and the inspection of all ranks")
      .Value("HOST:PORT");
  line.Add("port-file", &flags.port_file,
           "file to write the gRPC port to, once trainers may attach")
      .Value("PATH")
      .Default("none");
  line.Group("End");
  line.Add("drain-timeout", &flags.drain_timeout,
           "how long a step that is under way may last after SIGTERM");
  line.Group("Messages");
  AddLogLevelOption(line, &flags.log_level);
  return line;
}

LogContext Who(const Flags& flags) {
  LogContext who;
  who.role = "server";
  who.job = flags.owners.job;
  return who;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "optshard-server: %s\n", status.ToString().c_str());
  return 1;
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Until the server is told to stop, or nobody keeps it any more: without its keeper nobody would
// find it, and nothing would outlive it.
void WaitForTheEnd(const Flags& flags, const KeeperLink* keeper, const NodeOwners& owners,
                   ShardOwnerServer& inspection) {
  const sigset_t signals = StopSignals();
  while (sigtimedwait(&signals, nullptr, &kLook) < 0) {
    inspection.SetServing(owners.Ready());
    if (keeper == nullptr || !keeper->KeeperGone()) continue;
    Log(LogLevel::kWarning, Who(flags), "the keeper has ended");
    return;
  }
}

// `keeper` is null where there is none.
int Serve(const Flags& flags, KeeperLink* keeper) {
  absl::StatusOr<std::string> network = AddressTowards(flags.coordinator);
  if (!network.ok()) return Fail(network.status());
  absl::StatusOr<std::unique_ptr<CoordinatorClient>> client =
      MakeCoordinatorClient(flags.coordinator);
  if (!client.ok()) return Fail(client.status());
  ShardOwnerServer::Options inspection_options;
  inspection_options.listen = flags.owner_listen;
  inspection_options.serving = false;
  ShardViewRegistry views;
  absl::StatusOr<std::unique_ptr<ShardOwnerServer>> inspection =
      ShardOwnerServer::Start(inspection_options, &views);
  if (!inspection.ok()) return Fail(inspection.status());
  NodeOwners::Options options = flags.owners;
  options.coordinator = client->get();
  options.coordinator_address = flags.coordinator;
  options.network = flags.interface.empty() ? *network : flags.interface;
  options.views = &views;
  options.owner_address =
      ReachableAddress(flags.owner_listen, (*inspection)->port(), *network, HostAddresses());
  options.keeper = keeper;
  NodeOwners owners(options);
  if (keeper != nullptr) {
    absl::Status taken_over = owners.TakeOver(keeper->TakeInherited());
    if (!taken_over.ok()) return Fail(taken_over);
  }
  absl::StatusOr<std::unique_ptr<AttachServer>> server = AttachServer::Start(flags.socket, &owners);
  if (!server.ok()) return Fail(server.status());
  if (!flags.port_file.empty()) {
    absl::Status written = WritePortFile(flags.port_file, (*inspection)->port());
    if (!written.ok()) return Fail(written);
  }
  Log(LogLevel::kInfo, Who(flags), "ranks %s attach at %s; health and inspection at %s",
      RankSetText(options.ranks), flags.socket, options.owner_address);

  WaitForTheEnd(flags, keeper, owners, **inspection);

  Log(LogLevel::kInfo, Who(flags), "shutting down");
  (*inspection)->SetServing(false);
  (*server)->StopListening();
  const bool in_order = owners.Drain(flags.drain_timeout);
  (*server)->Stop(absl::UnavailableError("the shard server is shutting down"));
  if (!in_order) {
    // Some thread still waits for another node. The kernel takes what it holds.
    Log(LogLevel::kWarning, Who(flags),
        "a step did not end in time; its ranks look lost to the others");
    std::fflush(nullptr);
    std::_Exit(0);
  }
  Log(LogLevel::kInfo, Who(flags), "stopped");
  return 0;
}

int Main(const Flags& flags) {
  absl::Status level = SetLogLevel(flags.log_level);
  if (!level.ok()) return Fail(level);
  // Before any thread starts, so that all inherit it and only the wait for the end takes them.
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  if (!flags.keeper) return Serve(flags, nullptr);
  KeeperOptions keeper;
  keeper.serve = [&flags](KeeperLink& link) { return Serve(flags, &link); };
  return RunKeeper(keeper);
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  optshard::Flags flags;
  const auto end = optshard::CommandLineOf(flags).ParseOrEnd(argc, argv);
  return end ? *end : optshard::Main(flags);
}
