#include "common/task_place.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

constexpr int kMostTasks = 1 << 20;

struct System {
  const char* name;
  const char* task;
  const char* tasks;
  const char* tasks_here = nullptr;
  bool needs_tasks_here = false;
  const char* node = nullptr;
  const char* nodes = nullptr;
};

constexpr System kSystems[] = {
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"Hydra (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", true},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", nullptr, false, "SLURM_NODEID",
     "SLURM_STEP_NUM_NODES"},
    {"PMI", "PMI_RANK", "PMI_SIZE"},
};

const char* Value(const Variables& variable, const char* name) {
  return name == nullptr ? nullptr : variable(name);
}

// Leaves `target` alone where the variable is not set.
absl::Status Take(const Variables& variable, const char* name, int least, int most,
                  absl::optional<int>& target) {
  const char* const value = Value(variable, name);
  if (value == nullptr) return absl::OkStatus();
  const absl::StatusOr<int> number = NumberOfVariable(name, value, least, most);
  if (number.ok()) target = *number;
  return number.status();
}

absl::StatusOr<absl::optional<TaskPlace>> PlaceIn(const System& system, const Variables& variable) {
  TaskPlace place;
  place.system = system.name;
  absl::optional<int> tasks;
  absl::optional<int> task;
  absl::Status status = Take(variable, system.tasks, 1, kMostTasks, tasks);
  if (status.ok()) status = Take(variable, system.task, 0, *tasks - 1, task);
  if (status.ok()) status = Take(variable, system.tasks_here, 1, *tasks, place.tasks_here);
  if (status.ok()) status = Take(variable, system.nodes, 1, *tasks, place.nodes);
  if (status.ok()) {
    status = Take(variable, system.node, 0, place.nodes.value_or(*tasks) - 1, place.node);
  }
  if (!status.ok()) return status;
  place.tasks = *tasks;
  place.task = *task;
  return absl::make_optional(place);
}

}  // namespace

absl::StatusOr<int> NumberOfVariable(const char* name, const char* value, int least, int most) {
  int number = 0;
  if (absl::SimpleAtoi(value, &number) && number >= least && number <= most) return number;
  return absl::InvalidArgumentError(absl::StrCat("environment variable ", name, "=\"", value,
                                                 "\": expected a whole number from ", least, " to ",
                                                 most));
}

absl::StatusOr<absl::optional<TaskPlace>> TaskPlaceFromVariables(const Variables& variable) {
  for (const System& system : kSystems) {
    if (Value(variable, system.task) == nullptr) continue;
    if (Value(variable, system.tasks) == nullptr) continue;
    if (system.needs_tasks_here && Value(variable, system.tasks_here) == nullptr) continue;
    return PlaceIn(system, variable);
  }
  return absl::optional<TaskPlace>();
}

}  // namespace optshard
