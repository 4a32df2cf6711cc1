// Which of how many tasks a process is, by the variables of the program that started it: srun or
// mpirun.
#ifndef OPTSHARD_COMMON_TASK_PLACE_H_
#define OPTSHARD_COMMON_TASK_PLACE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace optshard {

// Returns null for a variable that is not set.
using Variables = std::function<const char*(const char*)>;

struct TaskPlace {
  std::string system;  // "Slurm"
  int task = 0;
  int tasks = 1;
  absl::optional<int> tasks_here;  // on this node
  absl::optional<int> nodes;
  absl::optional<int> node;
};

// The first of these whose task and number of tasks are both set:
//
//   system      task                  tasks                 tasks here                 node
//   Open MPI    OMPI_COMM_WORLD_RANK  OMPI_COMM_WORLD_SIZE  OMPI_COMM_WORLD_LOCAL_SIZE
//   Hydra       PMI_RANK              PMI_SIZE              MPI_LOCALNRANKS
//   Slurm       SLURM_PROCID          SLURM_STEP_NUM_TASKS                             (below)
//   PMI         PMI_RANK              PMI_SIZE
//
// Hydra is mpirun of MPICH and of Intel MPI, and counts only with its third variable. Slurm also
// says the node, SLURM_NODEID of SLURM_STEP_NUM_NODES. mpirun comes before Slurm, because within a
// Slurm job it starts its tasks by srun, whose variables they inherit. The batch script of a Slurm
// job is no task: it has SLURM_PROCID, but not SLURM_STEP_NUM_TASKS, which only srun sets.
//
// Nothing where none is set. INVALID_ARGUMENT naming the variable, its value and what was expected.
absl::StatusOr<absl::optional<TaskPlace>> TaskPlaceFromVariables(const Variables& variable);

// The variable as a number. INVALID_ARGUMENT naming it, its value and the range.
absl::StatusOr<int> NumberOfVariable(const char* name, const char* value, int least, int most);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_TASK_PLACE_H_
