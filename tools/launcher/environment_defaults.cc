#include "tools/launcher/environment_defaults.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace optshard {
namespace {

constexpr int kMost = 1 << 20;

// Whether a batch script of Slurm runs this, outside of srun.
bool InBatchScript(const Variables& variable) {
  return variable("SLURM_JOB_ID") != nullptr && variable("SLURM_STEP_NUM_TASKS") == nullptr;
}

absl::Status SeveralLaunchers(const TaskPlace& place, int on_one_node) {
  return absl::InvalidArgumentError(absl::StrCat(
      place.system, " has started ", on_one_node,
      " tasks on one node, expected one optshard-run on "
      "each: srun --ntasks-per-node=1, mpirun --map-by ppr:1:node or mpiexec -ppn 1; or start the "
      "trainers by it directly, without optshard-run; or say --nnodes and --node-rank"));
}

absl::StatusOr<absl::optional<NodePlace>> NodeOfTask(const TaskPlace& place) {
  if (place.nodes && place.node) {
    if (place.tasks > *place.nodes) {
      return SeveralLaunchers(place, (place.tasks + *place.nodes - 1) / *place.nodes);
    }
    return absl::make_optional(NodePlace{place.system, *place.nodes, *place.node});
  }
  if (place.tasks_here.value_or(1) > 1) return SeveralLaunchers(place, *place.tasks_here);
  return absl::make_optional(NodePlace{place.system, place.tasks, place.task});
}

absl::StatusOr<absl::optional<NodePlace>> NodeOfTorchrun(const Variables& variable) {
  const absl::StatusOr<int> nodes =
      NumberOfVariable("PET_NNODES", variable("PET_NNODES"), 1, kMost);
  if (!nodes.ok()) return nodes.status();
  const char* const node = variable("PET_NODE_RANK");
  const absl::StatusOr<int> rank =
      NumberOfVariable("PET_NODE_RANK", node == nullptr ? "0" : node, 0, *nodes - 1);
  if (!rank.ok()) return rank.status();
  if (*nodes > 1 && node == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("environment variable PET_NNODES is ", *nodes,
                                                   ", but PET_NODE_RANK is not set: set it, or "
                                                   "say --node-rank"));
  }
  return absl::make_optional(NodePlace{"torchrun", *nodes, *rank});
}

absl::StatusOr<absl::optional<NodePlace>> NodeOfBatchScript(const Variables& variable) {
  const char* const value = variable("SLURM_JOB_NUM_NODES");
  if (value == nullptr) return absl::optional<NodePlace>();
  const absl::StatusOr<int> nodes = NumberOfVariable("SLURM_JOB_NUM_NODES", value, 1, kMost);
  if (!nodes.ok()) return nodes.status();
  if (*nodes == 1) return absl::make_optional(NodePlace{"Slurm", 1, 0});
  return absl::InvalidArgumentError(
      absl::StrCat("this Slurm job has ", *nodes,
                   " nodes, but its batch script runs on the first one only: start "
                   "one optshard-run on each by srun --ntasks-per-node=1, or say --nnodes=1"));
}

}  // namespace

absl::StatusOr<absl::optional<NodePlace>> NodeFromVariables(const Variables& variable) {
  if (variable("PET_NNODES") != nullptr) return NodeOfTorchrun(variable);
  const absl::StatusOr<absl::optional<TaskPlace>> place = TaskPlaceFromVariables(variable);
  if (!place.ok()) return place.status();
  if (place->has_value()) return NodeOfTask(**place);
  if (InBatchScript(variable)) return NodeOfBatchScript(variable);
  return absl::optional<NodePlace>();
}

absl::StatusOr<absl::optional<int>> RanksFromVariables(const Variables& variable) {
  const char* name = "PET_NPROC_PER_NODE";
  const char* value = variable(name);
  std::string ranks = value == nullptr ? "" : value;
  if (value == nullptr && InBatchScript(variable)) {
    name = "SLURM_TASKS_PER_NODE";
    value = variable(name);
    if (value == nullptr) return absl::optional<int>();
    // "4", "4(x2)" on two nodes, "4,2" on different ones
    ranks = value;
    if (absl::StrContains(ranks, ',')) return absl::optional<int>();
    ranks = ranks.substr(0, ranks.find('('));
  }
  if (value == nullptr) return absl::optional<int>();
  const absl::StatusOr<int> number = NumberOfVariable(name, ranks.c_str(), 1, kMost);
  if (!number.ok()) return number.status();
  return absl::make_optional(*number);
}

absl::StatusOr<std::string> CoordinatorFromVariables(const Variables& variable) {
  const char* const given = variable("OPTSHARD_COORDINATOR");
  if (given != nullptr && *given != '\0') return std::string(given);
  for (const auto& [address, port] :
       {std::pair("MASTER_ADDR", "MASTER_PORT"), std::pair("PET_MASTER_ADDR", "PET_MASTER_PORT")}) {
    const char* const host = variable(address);
    const char* const value = variable(port);
    if (host == nullptr || value == nullptr) continue;
    const absl::StatusOr<int> number = NumberOfVariable(port, value, 1, 65534);
    if (!number.ok()) return number.status();
    const bool six = absl::StrContains(host, ":");
    return absl::StrCat(six ? "[" : "", host, six ? "]:" : ":", *number + 1);
  }
  return std::string();
}

}  // namespace optshard
