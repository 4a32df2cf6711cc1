#include "tools/launcher/environment_defaults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace optshard {
namespace {

using ::testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

Variables Of(const Environment& environment) {
  return [&environment](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  };
}

struct Row {
  const char* name;
  Environment environment;
  std::string system;  // empty: no node is said
  int nodes = 0;
  int node_rank = 0;
  int ranks = 0;  // 0: not said
};

const std::vector<Row>& Rows() {
  static const auto* const rows = new std::vector<Row>{
      {"Nothing", {}, ""},
      {"Torchrun",
       {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}, {"PET_NPROC_PER_NODE", "4"}},
       "torchrun",
       2,
       1,
       4},
      {"TorchrunOnOneNode", {{"PET_NNODES", "1"}}, "torchrun", 1, 0, 0},
      {"OpenMpiOneANode",
       {{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "3"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}},
       "Open MPI",
       3,
       1,
       0},
      {"HydraOneANode",
       {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALNRANKS", "1"}},
       "Hydra (MPICH, Intel MPI)",
       3,
       2,
       0},
      {"SrunOneANode",
       {{"SLURM_JOB_ID", "7"},
        {"SLURM_PROCID", "1"},
        {"SLURM_STEP_NUM_TASKS", "2"},
        {"SLURM_STEP_NUM_NODES", "2"},
        {"SLURM_NODEID", "1"},
        {"SLURM_TASKS_PER_NODE", "1(x2)"}},
       "Slurm",
       2,
       1,
       0},
      {"BatchScriptOfOneNode",
       {{"SLURM_JOB_ID", "7"},
        {"SLURM_JOB_NUM_NODES", "1"},
        {"SLURM_PROCID", "0"},
        {"SLURM_TASKS_PER_NODE", "4"}},
       "Slurm",
       1,
       0,
       4},
      // Kubeflow's variables win over those of what runs beneath.
      {"TorchrunWithinSlurm",
       {{"PET_NNODES", "4"},
        {"PET_NODE_RANK", "3"},
        {"SLURM_PROCID", "0"},
        {"SLURM_STEP_NUM_TASKS", "1"}},
       "torchrun",
       4,
       3,
       0},
  };
  return *rows;
}

class EnvironmentDefaultsTest : public ::testing::TestWithParam<Row> {};

TEST_P(EnvironmentDefaultsTest, Variables_SayNodeAndRanks) {
  const Row& row = GetParam();
  const auto place = NodeFromVariables(Of(row.environment));
  ASSERT_TRUE(place.ok()) << place.status();
  ASSERT_EQ(place->has_value(), !row.system.empty());
  if (place->has_value()) {
    EXPECT_EQ((*place)->system, row.system);
    EXPECT_EQ((*place)->nodes, row.nodes);
    EXPECT_EQ((*place)->node_rank, row.node_rank);
  }
  const auto ranks = RanksFromVariables(Of(row.environment));
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  EXPECT_EQ(ranks->value_or(0), row.ranks);
}

INSTANTIATE_TEST_SUITE_P(All, EnvironmentDefaultsTest, ::testing::ValuesIn(Rows()),
                         [](const auto& info) { return info.param.name; });

TEST(RanksFromVariablesTest, TasksPerNode_CountWhereAllNodesHaveTheSame) {
  for (const auto& [text, ranks] :
       std::map<std::string, int>{{"4", 4}, {"4(x2)", 4}, {"4(x2),1", 0}, {"4,2", 0}}) {
    const Environment environment = {{"SLURM_JOB_ID", "7"}, {"SLURM_TASKS_PER_NODE", text}};
    const auto found = RanksFromVariables(Of(environment));
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->value_or(0), ranks) << text;
  }
}

struct BadRow {
  Environment environment;
  const char* said;
};

TEST(NodeFromVariablesTest, WhatCannotBe_IsNamed) {
  const BadRow rows[] = {
      {{{"PET_NNODES", "1:4"}}, "PET_NNODES=\"1:4\""},
      {{{"PET_NNODES", "2"}}, "PET_NODE_RANK is not set"},
      {{{"PET_NNODES", "2"}, {"PET_NODE_RANK", "2"}}, "PET_NODE_RANK=\"2\""},
      {{{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
       "Open MPI has started 2 tasks on one node, expected one optshard-run on each"},
      {{{"SLURM_PROCID", "1"},
        {"SLURM_STEP_NUM_TASKS", "4"},
        {"SLURM_STEP_NUM_NODES", "2"},
        {"SLURM_NODEID", "0"}},
       "Slurm has started 2 tasks on one node"},
      {{{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "4"}, {"SLURM_PROCID", "0"}},
       "this Slurm job has 4 nodes, but its batch script runs on the first one only"},
      {{{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "x"}}, "SLURM_JOB_NUM_NODES=\"x\""},
  };
  for (const BadRow& row : rows) {
    const auto place = NodeFromVariables(Of(row.environment));
    EXPECT_EQ(place.status().code(), absl::StatusCode::kInvalidArgument) << row.said;
    EXPECT_THAT(std::string(place.status().message()), HasSubstr(row.said));
  }
  const Environment gpu = {{"PET_NPROC_PER_NODE", "gpu"}};
  EXPECT_THAT(std::string(RanksFromVariables(Of(gpu)).status().message()),
              HasSubstr("PET_NPROC_PER_NODE=\"gpu\""));
}

TEST(CoordinatorFromVariablesTest, FirstThatIsSet_Counts) {
  const std::pair<Environment, const char*> rows[] = {
      {{}, ""},
      {{{"OPTSHARD_COORDINATOR", "a:1"}, {"MASTER_ADDR", "b"}, {"MASTER_PORT", "2"}}, "a:1"},
      {{{"OPTSHARD_COORDINATOR", ""}, {"MASTER_ADDR", "b"}, {"MASTER_PORT", "2"}}, "b:3"},
      {{{"MASTER_ADDR", "b"}}, ""},
      {{{"PET_MASTER_ADDR", "c"}, {"PET_MASTER_PORT", "29500"}}, "c:29501"},
      {{{"MASTER_ADDR", "fe80::1"}, {"MASTER_PORT", "2"}}, "[fe80::1]:3"},
  };
  for (const auto& [environment, expected] : rows) {
    const auto found = CoordinatorFromVariables(Of(environment));
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, expected);
  }
  const Environment bad = {{"MASTER_ADDR", "b"}, {"MASTER_PORT", "65535"}};
  EXPECT_THAT(std::string(CoordinatorFromVariables(Of(bad)).status().message()),
              HasSubstr("MASTER_PORT=\"65535\""));
}

}  // namespace
}  // namespace optshard
