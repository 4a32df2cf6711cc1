#include "common/task_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace optshard {
namespace {

using ::testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

absl::StatusOr<absl::optional<TaskPlace>> From(const Environment& environment) {
  return TaskPlaceFromVariables([&environment](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

struct Row {
  const char* name;
  Environment environment;
  std::string system;  // empty: no task
  int task = 0;
  int tasks = 0;
  absl::optional<int> tasks_here = {};
  absl::optional<int> nodes = {};
  absl::optional<int> node = {};
};

const std::vector<Row>& Rows() {
  static const auto* const rows = new std::vector<Row>{
      {"Nothing", {}, ""},
      {"OpenMpi",
       {{"OMPI_COMM_WORLD_RANK", "3"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
       "Open MPI",
       3,
       4,
       2},
      {"Hydra",
       {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "1"}},
       "Hydra (MPICH, Intel MPI)",
       1,
       2,
       1},
      {"Pmi", {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, "PMI", 1, 2},
      {"Srun",
       {{"SLURM_PROCID", "5"},
        {"SLURM_STEP_NUM_TASKS", "8"},
        {"SLURM_STEP_NUM_NODES", "2"},
        {"SLURM_NODEID", "1"}},
       "Slurm",
       5,
       8,
       absl::nullopt,
       2,
       1},
      {"SrunThatSaysNoNode", {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}, "Slurm", 0, 1},
      {"BatchScriptOfSlurm",
       {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_NODEID", "0"}},
       ""},
      // mpirun starts one daemon a node by srun, and its tasks have srun's variables of the daemon.
      {"OpenMpiWithinSlurm",
       {{"OMPI_COMM_WORLD_RANK", "3"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"SLURM_PROCID", "1"},
        {"SLURM_STEP_NUM_TASKS", "2"}},
       "Open MPI",
       3,
       4},
      {"HydraWithinSlurm",
       {{"PMI_RANK", "3"},
        {"PMI_SIZE", "4"},
        {"MPI_LOCALNRANKS", "2"},
        {"SLURM_PROCID", "1"},
        {"SLURM_STEP_NUM_TASKS", "2"}},
       "Hydra (MPICH, Intel MPI)",
       3,
       4,
       2},
      // srun --mpi=pmi2 sets both; its own say more.
      {"SrunWithPmi",
       {{"PMI_RANK", "3"},
        {"PMI_SIZE", "4"},
        {"SLURM_PROCID", "3"},
        {"SLURM_STEP_NUM_TASKS", "4"},
        {"SLURM_STEP_NUM_NODES", "2"},
        {"SLURM_NODEID", "1"}},
       "Slurm",
       3,
       4,
       absl::nullopt,
       2,
       1},
      {"OnlyHalf", {{"OMPI_COMM_WORLD_RANK", "3"}, {"PMI_SIZE", "4"}}, ""},
  };
  return *rows;
}

class TaskPlaceTest : public ::testing::TestWithParam<Row> {};

TEST_P(TaskPlaceTest, Variables_SayThePlace) {
  const Row& row = GetParam();
  const auto place = From(row.environment);
  ASSERT_TRUE(place.ok()) << place.status();
  ASSERT_EQ(place->has_value(), !row.system.empty());
  if (!place->has_value()) return;
  EXPECT_EQ((*place)->system, row.system);
  EXPECT_EQ((*place)->task, row.task);
  EXPECT_EQ((*place)->tasks, row.tasks);
  EXPECT_EQ((*place)->tasks_here, row.tasks_here);
  EXPECT_EQ((*place)->nodes, row.nodes);
  EXPECT_EQ((*place)->node, row.node);
}

INSTANTIATE_TEST_SUITE_P(All, TaskPlaceTest, ::testing::ValuesIn(Rows()),
                         [](const auto& info) { return info.param.name; });

TEST(TaskPlaceErrorsTest, BadNumber_NamesVariableValueAndRange) {
  const Environment bad[] = {
      {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "x"}},
      {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "0"}},
      {{"SLURM_PROCID", "2"}, {"SLURM_STEP_NUM_TASKS", "2"}},
      {{"PMI_RANK", "-1"}, {"PMI_SIZE", "2"}},
      {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "3"}},
      {{"SLURM_PROCID", "0"},
       {"SLURM_STEP_NUM_TASKS", "2"},
       {"SLURM_STEP_NUM_NODES", "2"},
       {"SLURM_NODEID", "2"}},
  };
  const char* const said[] = {"OMPI_COMM_WORLD_SIZE=\"x\"", "SLURM_STEP_NUM_TASKS=\"0\"",
                              "SLURM_PROCID=\"2\"",         "PMI_RANK=\"-1\"",
                              "MPI_LOCALNRANKS=\"3\"",      "SLURM_NODEID=\"2\""};
  for (size_t i = 0; i < std::size(bad); ++i) {
    const auto place = From(bad[i]);
    EXPECT_EQ(place.status().code(), absl::StatusCode::kInvalidArgument) << said[i];
    EXPECT_THAT(std::string(place.status().message()), HasSubstr(said[i]));
    EXPECT_THAT(std::string(place.status().message()), HasSubstr("expected a whole number from"));
  }
}

}  // namespace
}  // namespace optshard
