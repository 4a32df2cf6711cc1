// optshard-server: the shard owners of a node's ranks, as a program beside the trainers.
#include <pthread.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "common/membership/coordinator_client_rpc.h"
#include "common/rpc/network_choice.h"
#include "server/coordinator/port_file.h"
#include "server/node/attach_server.h"
#include "server/node/byte_size.h"
#include "server/node/dashed_flags.h"
#include "server/node/keeper.h"
#include "server/node/keeper_link.h"
#include "server/node/node_health_service.h"
#include "server/node/node_inspection_service.h"
#include "server/node/node_owners.h"
#include "server/node/rank_set.h"

ABSL_FLAG(std::string, node_ranks, "", "the ranks to host, such as 0-3 or 0,2-5 (required)");
ABSL_FLAG(std::string, coordinator, "", "HOST:PORT of the job's coordinator (required)");
ABSL_FLAG(std::string, socket, "",
          "path of the Unix socket where trainers attach, or @NAME (required)");
ABSL_FLAG(std::string, memory_limit, "",
          "most memory for parameters, gradients and optimizer state of all ranks, such as 8GiB; "
          "empty: what the cgroup and the machine leave");
ABSL_FLAG(std::string, job, "optshard", "name of the job; trainers of another one are refused");
ABSL_FLAG(std::string, owner_listen, "127.0.0.1:0",
          "HOST:PORT of the health service; the ranks are looked into at free ports of the host");
ABSL_FLAG(std::string, interface, "",
          "network interface or address of the data plane between hosts; empty: the one towards "
          "the coordinator");
ABSL_FLAG(std::string, plane, "auto", "data plane: auto, shm or gloo");
ABSL_FLAG(std::string, port_file, "",
          "file to write the health service's port to, once trainers may attach; empty: none");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(10),
          "how long a step that is under way may last after SIGTERM");
ABSL_FLAG(bool, keeper, true,
          "fork a keeper, as the parent of the server: it holds what the ranks have in memory, and "
          "starts the server again when that was killed");
ABSL_FLAG(std::string, log_level, "info", "debug, info, warning, error or off");

namespace optshard {
namespace {

constexpr timespec kLook = {0, 50'000'000};

LogContext Who() {
  LogContext who;
  who.role = "server";
  who.job = absl::GetFlag(FLAGS_job);
  return who;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "optshard-server: %s\n", status.ToString().c_str());
  return 1;
}

absl::StatusOr<NodeOwners::Options> OptionsFromFlags() {
  for (const auto& [name, flag] :
       {std::pair("node-ranks", &FLAGS_node_ranks), std::pair("coordinator", &FLAGS_coordinator),
        std::pair("socket", &FLAGS_socket)}) {
    if (absl::GetFlag(*flag).empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " is missing; see --help"));
    }
  }
  NodeOwners::Options options;
  options.job = absl::GetFlag(FLAGS_job);
  absl::StatusOr<std::set<Rank>> ranks = ParseRankSet(absl::GetFlag(FLAGS_node_ranks));
  if (!ranks.ok()) return ranks.status();
  options.ranks = *std::move(ranks);
  const std::string limit = absl::GetFlag(FLAGS_memory_limit);
  if (!limit.empty()) {
    absl::StatusOr<int64_t> bytes = ParseByteSize(limit);
    if (!bytes.ok()) return bytes.status();
    options.memory_limit_bytes = *bytes;
  }
  absl::StatusOr<HostPlaneKind> plane = ParseHostPlaneKind(absl::GetFlag(FLAGS_plane));
  if (!plane.ok()) return plane.status();
  options.plane = *plane;
  return options;
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
void WaitForTheEnd(const KeeperLink* keeper, const NodeOwners& owners, NodeHealthServer& health) {
  const sigset_t signals = StopSignals();
  while (sigtimedwait(&signals, nullptr, &kLook) < 0) {
    health.SetServing(owners.Ready());
    if (keeper == nullptr || !keeper->KeeperGone()) continue;
    Log(LogLevel::kWarning, Who(), "the keeper has ended");
    return;
  }
}

// `keeper` is null where there is none.
int Serve(NodeOwners::Options options, KeeperLink* keeper) {
  const std::string coordinator = absl::GetFlag(FLAGS_coordinator);
  absl::StatusOr<std::string> network = AddressTowards(coordinator);
  if (!network.ok()) return Fail(network.status());
  absl::StatusOr<std::unique_ptr<CoordinatorClient>> client = MakeCoordinatorClient(coordinator);
  if (!client.ok()) return Fail(client.status());
  const std::string listen = absl::GetFlag(FLAGS_owner_listen);
  NodeInspection inspection(listen.substr(0, listen.rfind(':')), *network);
  options.coordinator = client->get();
  options.network = absl::GetFlag(FLAGS_interface);
  if (options.network.empty()) options.network = *network;
  options.inspection = &inspection;
  options.keeper = keeper;
  absl::StatusOr<std::unique_ptr<NodeHealthServer>> health = NodeHealthServer::Start(listen);
  if (!health.ok()) return Fail(health.status());
  NodeOwners owners(options);
  if (keeper != nullptr) {
    absl::Status taken_over = owners.TakeOver(keeper->TakeInherited());
    if (!taken_over.ok()) return Fail(taken_over);
  }
  absl::StatusOr<std::unique_ptr<AttachServer>> server =
      AttachServer::Start(absl::GetFlag(FLAGS_socket), &owners);
  if (!server.ok()) return Fail(server.status());
  const std::string port_file = absl::GetFlag(FLAGS_port_file);
  if (!port_file.empty()) {
    absl::Status written = WritePortFile(port_file, (*health)->port());
    if (!written.ok()) return Fail(written);
  }
  Log(LogLevel::kInfo, Who(), "ranks %s attach at %s, health at port %d",
      RankSetText(options.ranks), absl::GetFlag(FLAGS_socket), (*health)->port());

  WaitForTheEnd(keeper, owners, **health);

  Log(LogLevel::kInfo, Who(), "shutting down");
  (*health)->SetServing(false);
  (*server)->StopListening();
  const bool in_order = owners.Drain(absl::GetFlag(FLAGS_drain_timeout));
  (*server)->Stop(absl::UnavailableError("the shard server is shutting down"));
  if (!in_order) {
    // Some thread still waits for another node. The kernel takes what it holds.
    Log(LogLevel::kWarning, Who(), "a step did not end in time; its ranks look lost to the others");
    std::fflush(nullptr);
    std::_Exit(0);
  }
  Log(LogLevel::kInfo, Who(), "stopped");
  return 0;
}

int Main() {
  absl::Status level = SetLogLevel(absl::GetFlag(FLAGS_log_level));
  if (!level.ok()) return Fail(level);
  const absl::StatusOr<NodeOwners::Options> options = OptionsFromFlags();
  if (!options.ok()) return Fail(options.status());
  // Before any thread starts, so that all inherit it and only the wait for the end takes them.
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  if (!absl::GetFlag(FLAGS_keeper)) return Serve(*options, nullptr);
  KeeperOptions keeper;
  keeper.serve = [&options](KeeperLink& link) { return Serve(*options, &link); };
  return RunKeeper(keeper);
}

}  // namespace
}  // namespace optshard

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Hosts the shard owners of a node's ranks; trainers attach to it (docs/sidecar.md).\n"
      "  optshard-server --node-ranks=0-3 --coordinator=HOST:4700 --socket=/run/user/1000/optshard "
      "--memory-limit=8GiB");
  optshard::UnderscoreFlags(argc, argv);
  const auto rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    std::fprintf(stderr, "optshard-server: unexpected argument %s; see --help\n", rest[1]);
    return 1;
  }
  return optshard::Main();
}
