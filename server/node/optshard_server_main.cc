// optshard-server: the shard owners of a node's ranks, as a program beside the trainers.
#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>

#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/cli/command_line.h"
#include "common/cli/log_level_option.h"
#include "common/cli/parsed_option.h"
#include "common/log.h"
#include "common/membership/coordinator_client_rpc.h"
#include "common/port_file.h"
#include "common/rpc/awaited_address.h"
#include "common/rpc/network_choice.h"
#include "common/rpc/probe_server_rpc.h"
#include "server/device/owner_device.h"
#include "server/node/attach_server.h"
#include "server/node/byte_size.h"
#include "server/node/drain_command.h"
#include "server/node/keeper.h"
#include "server/node/keeper_link.h"
#include "server/node/memory_need_command.h"
#include "server/node/node_owners.h"
#include "server/node/rank_set.h"
#include "server/node/socket_folder.h"
#include "server/shard/inspection/shard_owner_server.h"
#include "server/shard/inspection/shard_view_registry.h"

namespace optshard {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(50);

struct Flags {
  NodeOwners::Options owners;
  std::string coordinator;
  absl::Duration coordinator_timeout = absl::Minutes(5);
  std::string socket;
  bool make_socket_folder = false;
  std::string interface;
  std::string owner_listen;
  std::string probe_listen;
  std::string port_file;
  absl::Duration drain_timeout = absl::Seconds(10);
  bool keeper = true;
  std::string log_level = "info";
  // Others run where they are given (main).
  bool memory_need = false;
  bool drain = false;
};

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
           "the ranks that may attach here, such as 0-3 or 0,2-5; 4@1 are those of node 1 where "
           "every node has four: 4-7")
      .Value("RANKS")
      .Required();
  line.Add("job", &flags.owners.job, "name of the job; trainers of another one are refused")
      .Value("NAME");
  line.Add("coordinator", &flags.coordinator, "address of the job's coordinator")
      .Value("HOST:PORT")
      .Required();
  line.Add("coordinator-timeout", &flags.coordinator_timeout,
           "how long the coordinator's name may be unknown, or no route lead there, before that is "
           "an error");
  line.Group("Trainers");
  line.Add("socket", &flags.socket,
           "the Unix socket where trainers attach: a path, or @NAME for Linux's abstract names")
      .Value("PATH")
      .Required();
  line.Add("make-socket-folder", &flags.make_socket_folder,
           "make the socket's folder, for this user alone, where it is not there");
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
      .Value("HOST:PORT")
      .Default("any port of the address towards the coordinator");
  line.Add("probe-listen", &flags.probe_listen,
           "address of another gRPC port, with nothing but health: \"liveness\" while the server's "
           "main loop comes around, \"readiness\" while trainers may attach")
      .Value("HOST:PORT")
      .Default("none");
  line.Add("port-file", &flags.port_file,
           "file to write the gRPC port to, once trainers may attach")
      .Value("PATH")
      .Default("none");
  line.Group("End");
  line.Add("drain-timeout", &flags.drain_timeout,
           "how long a step that is under way may last after SIGTERM");
  line.Group("Messages");
  AddLogLevelOption(line, &flags.log_level);
  line.Group("Instead of serving, each with a --help of its own");
  line.Add("memory-need", &flags.memory_need,
           "say how much memory a job's ranks will need here, and take none");
  line.Add("drain", &flags.drain,
           "end the server that listens at --socket, in good order, and wait for its end");
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

// Waits for so long. False where the server is to end: it was told to, or nobody keeps it any more.
// Without its keeper nobody would find it, and nothing would outlive it.
bool GoesOn(const Flags& flags, const KeeperLink* keeper, absl::Duration pause) {
  const sigset_t signals = StopSignals();
  const timespec wait = absl::ToTimespec(pause);
  if (sigtimedwait(&signals, nullptr, &wait) >= 0) return false;
  if (keeper == nullptr || !keeper->KeeperGone()) return true;
  Log(LogLevel::kWarning, Who(flags), "the keeper has ended");
  return false;
}

// Null where no probes are wanted.
absl::StatusOr<std::unique_ptr<ProbeServer>> StartProbes(const Flags& flags) {
  if (flags.probe_listen.empty()) return nullptr;
  ProbeServer::Options options;
  options.listen = flags.probe_listen;
  // While it drains, the main loop does not come around.
  options.longest_silence += flags.drain_timeout;
  return ProbeServer::Start(options);
}

absl::StatusOr<std::string> AwaitNetwork(const Flags& flags, const KeeperLink* keeper,
                                         ProbeServer* probes) {
  AddressWait wait;
  wait.timeout = flags.coordinator_timeout;
  wait.sleep = [&](absl::Duration pause) {
    if (probes != nullptr) probes->Beat();
    return GoesOn(flags, keeper, pause);
  };
  wait.say = [&](const std::string& message) { Log(LogLevel::kInfo, Who(flags), "%s", message); };
  return AwaitAddressTowards(flags.coordinator, wait);
}

// `keeper` is null where there is none.
int Serve(const Flags& flags, KeeperLink* keeper) {
  const absl::StatusOr<std::unique_ptr<ProbeServer>> started = StartProbes(flags);
  if (!started.ok()) return Fail(started.status());
  ProbeServer* const probes = started->get();
  const absl::StatusOr<std::string> network = AwaitNetwork(flags, keeper, probes);
  if (absl::IsCancelled(network.status())) return 0;
  if (!network.ok()) return Fail(network.status());
  absl::StatusOr<std::unique_ptr<CoordinatorClient>> client =
      MakeCoordinatorClient(flags.coordinator);
  if (!client.ok()) return Fail(client.status());
  ShardOwnerServer::Options inspection_options;
  inspection_options.listen =
      flags.owner_listen.empty() ? ListenTowards(*network) : flags.owner_listen;
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
      ReachableAddress(inspection_options.listen, (*inspection)->port(), *network, HostAddresses());
  options.keeper = keeper;
  options.find_device = FindOwnerDevice;
  NodeOwners owners(options);
  if (keeper != nullptr) {
    absl::Status taken_over = owners.TakeOver(keeper->TakeInherited());
    if (!taken_over.ok()) return Fail(taken_over);
  }
  if (flags.make_socket_folder) {
    const absl::Status made = MakeSocketFolder(flags.socket);
    if (!made.ok()) return Fail(made);
  }
  absl::StatusOr<std::unique_ptr<AttachServer>> server = AttachServer::Start(flags.socket, &owners);
  if (!server.ok()) return Fail(server.status());
  if (!flags.port_file.empty()) {
    absl::Status written = WritePortFile(flags.port_file, (*inspection)->port());
    if (!written.ok()) return Fail(written);
  }
  Log(LogLevel::kInfo, Who(flags), "ranks %s attach at %s; health and inspection at %s",
      RankSetText(options.ranks), flags.socket, options.owner_address);

  if (probes != nullptr) probes->SetReady(true);
  while (GoesOn(flags, keeper, kLook)) {
    (*inspection)->SetServing(owners.Ready());
    if (probes != nullptr) probes->Beat();
  }

  Log(LogLevel::kInfo, Who(flags), "shutting down");
  if (probes != nullptr) probes->SetReady(false);
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

// Before the command line is read, since another one is read then.
bool IsGiven(absl::string_view flag, int argc, char** argv) {
  return std::any_of(argv + 1, argv + argc, [flag](const char* argument) {
    return absl::StrReplaceAll(argument, {{"_", "-"}}) == flag;
  });
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  if (optshard::IsGiven("--memory-need", argc, argv)) return optshard::RunMemoryNeed(argc, argv);
  if (optshard::IsGiven("--drain", argc, argv)) return optshard::RunDrain(argc, argv);
  optshard::Flags flags;
  const auto end = optshard::CommandLineOf(flags).ParseOrEnd(argc, argv);
  return end ? *end : optshard::Main(flags);
}
