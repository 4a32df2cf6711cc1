// What the environment says about nodes and ranks: defaults of optshard-run's options.
#ifndef OPTSHARD_TOOLS_LAUNCHER_ENVIRONMENT_DEFAULTS_H_
#define OPTSHARD_TOOLS_LAUNCHER_ENVIRONMENT_DEFAULTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "common/task_place.h"

namespace optshard {

struct NodePlace {
  std::string system;  // that says so: "Slurm"
  int nodes = 1;
  int node_rank = 0;
};

// --nnodes and --node-rank, of the first of these that is there:
//
//   torchrun's option variables   PET_NNODES, PET_NODE_RANK
//   mpirun, one launcher a node   number of tasks, task (common/task_place.h)
//   srun, one launcher a node     number of nodes, node
//   a batch script of Slurm       SLURM_JOB_NUM_NODES, if that is 1
//
// Nothing where none is. INVALID_ARGUMENT where a value is bad, where several launchers run on one
// node, and in a batch script of several nodes, which runs on the first of them only.
absl::StatusOr<absl::optional<NodePlace>> NodeFromVariables(const Variables& variable);

// -n: PET_NPROC_PER_NODE, or in a batch script of Slurm SLURM_TASKS_PER_NODE, where that is the
// same on all nodes. Tasks of mpirun and srun are launchers, which says nothing of ranks: nothing.
// INVALID_ARGUMENT where a value is bad.
absl::StatusOr<absl::optional<int>> RanksFromVariables(const Variables& variable);

// The HOST:PORT of --coordinator where there are several nodes: OPTSHARD_COORDINATOR, else the port
// after MASTER_PORT at MASTER_ADDR, else that of PET_MASTER_PORT and PET_MASTER_ADDR. Empty where
// none is set.
absl::StatusOr<std::string> CoordinatorFromVariables(const Variables& variable);

}  // namespace optshard

#endif  // OPTSHARD_TOOLS_LAUNCHER_ENVIRONMENT_DEFAULTS_H_
