#include "tools/launcher/launch_plan.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "tools/launcher/environment_defaults.h"
#include "tools/launcher/host_port.h"

namespace optshard {
namespace {

constexpr int kNotGiven = LaunchFlags::kNotGiven;
constexpr int kMostRanks = 1 << 20;
constexpr int kTorchrunsPort = 29500;
constexpr int kMostPort = 65535;

std::string ValueOr(const Variables& variable, const char* name, const std::string& otherwise) {
  const char* const value = variable(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

// Ranks of this node, and which node it is of how many.
absl::Status SetPlace(const LaunchFlags& flags, const Variables& variable, LaunchPlan& plan) {
  plan.ranks = flags.ranks;
  if (flags.ranks == kNotGiven) {
    const absl::StatusOr<absl::optional<int>> ranks = RanksFromVariables(variable);
    if (!ranks.ok()) return ranks.status();
    if (!ranks->has_value()) {
      return absl::InvalidArgumentError("-n is missing: how many ranks this node runs; see --help");
    }
    plan.ranks = **ranks;
  }
  absl::StatusOr<absl::optional<NodePlace>> place = NodeFromVariables(variable);
  if (flags.nodes != kNotGiven) {
    // What the environment says of another number of nodes is not about this job.
    if (!place.ok() || (place->has_value() && (*place)->nodes != flags.nodes)) {
      place = absl::optional<NodePlace>();
    }
  } else if (!place.ok()) {
    return place.status();
  }
  const absl::optional<NodePlace> known = *place;
  plan.nodes = flags.nodes != kNotGiven ? flags.nodes : known ? known->nodes : 1;
  if (flags.node_rank != kNotGiven) {
    plan.node_rank = flags.node_rank;
  } else if (known) {
    plan.node_rank = known->node_rank;
  } else if (plan.nodes > 1) {
    return absl::InvalidArgumentError(absl::StrCat("--node-rank is missing: which of the ",
                                                   plan.nodes, " nodes this is, from 0 to ",
                                                   plan.nodes - 1));
  }
  if (plan.node_rank >= plan.nodes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--node-rank=", plan.node_rank, ": expected 0 to ", plan.nodes - 1, ", since --nnodes is ",
        plan.nodes,
        flags.nodes == kNotGiven
            ? known ? absl::StrCat(", as ", known->system, " says") : " where it is not given"
            : ""));
  }
  if (plan.ranks > kMostRanks / plan.nodes) {
    return absl::InvalidArgumentError(absl::StrCat("-n ", plan.ranks, " on ", plan.nodes,
                                                   " nodes: expected at most ", kMostRanks,
                                                   " ranks in all"));
  }
  return absl::OkStatus();
}

absl::Status SetAddresses(const LaunchFlags& flags, const Variables& variable, LaunchPlan& plan) {
  plan.coordinator = flags.coordinator;
  plan.master_port = flags.master_port == kNotGiven ? 0 : flags.master_port;
  if (plan.master_port > kMostPort) {
    return absl::InvalidArgumentError(
        absl::StrCat("--master-port=", plan.master_port, ": expected 1 to ", kMostPort));
  }
  if (plan.nodes > 1 && plan.coordinator.empty()) {
    const absl::StatusOr<std::string> known = CoordinatorFromVariables(variable);
    if (!known.ok()) return known.status();
    plan.coordinator = *known;
    if (plan.coordinator.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--coordinator is missing: with --nnodes=", plan.nodes,
          " all nodes need the same "
          "HOST:PORT, an address of node 0 that the others reach and a port that is free there"));
    }
  }
  if (plan.coordinator.empty()) return absl::OkStatus();
  const absl::StatusOr<HostPort> address = ParseHostPort(plan.coordinator);
  if (!address.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--coordinator: ", address.status().message()));
  }
  plan.master_host = address->host;
  if (plan.nodes == 1 || flags.master_port != kNotGiven) return absl::OkStatus();
  const std::string port = ValueOr(variable, "MASTER_PORT", absl::StrCat(kTorchrunsPort));
  const absl::StatusOr<int> number = NumberOfVariable("MASTER_PORT", port.c_str(), 1, kMostPort);
  if (!number.ok()) return number.status();
  plan.master_port = *number;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LaunchPlan> MakeLaunchPlan(const LaunchFlags& flags, const Variables& variable) {
  LaunchPlan plan;
  absl::Status status = SetPlace(flags, variable, plan);
  if (status.ok()) status = SetAddresses(flags, variable, plan);
  if (!status.ok()) return status;
  if (!flags.server && flags.max_restarts > 0) {
    return absl::InvalidArgumentError(
        "--max-restarts with --no-server: the state of a rank would be lost with its trainer, so "
        "that no other could go on; leave one of them out");
  }
  plan.job = flags.job.empty() ? ValueOr(variable, "OPTSHARD_JOB", "optshard") : flags.job;
  plan.server = flags.server;
  plan.max_restarts = flags.max_restarts;
  plan.server_options = absl::StrSplit(flags.server_options, ' ', absl::SkipEmpty());
  plan.coordinator_options = absl::StrSplit(flags.coordinator_options, ' ', absl::SkipEmpty());
  plan.log_level = flags.log_level.empty() ? ValueOr(variable, "OPTSHARD_LOG_LEVEL", "warning")
                                           : flags.log_level;
  plan.program = flags.program;
  return plan;
}

}  // namespace optshard
