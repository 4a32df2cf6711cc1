#include "tools/launcher/launch_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

absl::StatusOr<LaunchPlan> Plan(const LaunchFlags& flags, const Environment& environment = {}) {
  return MakeLaunchPlan(flags, [&environment](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

std::string Error(const LaunchFlags& flags, const Environment& environment = {}) {
  const auto plan = Plan(flags, environment);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(plan.status().message());
}

LaunchFlags Ranks(int ranks) {
  LaunchFlags flags;
  flags.ranks = ranks;
  return flags;
}

LaunchFlags Nodes(int nodes, int node_rank, const std::string& coordinator = "a:4700") {
  LaunchFlags flags = Ranks(2);
  flags.nodes = nodes;
  flags.node_rank = node_rank;
  flags.coordinator = coordinator;
  return flags;
}

const Environment& SecondOfTwoBySlurm() {
  static const auto* const environment = new Environment{
      {"SLURM_JOB_ID", "7"},         {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"},
      {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_NODEID", "1"}, {"MASTER_ADDR", "node0"},
      {"MASTER_PORT", "6000"}};
  return *environment;
}

TEST(LaunchPlanTest, OnlyRanks_IsOneNodeOnTheLoopback) {
  LaunchFlags flags = Ranks(4);
  flags.program = {"./trainer", "--epochs=5"};
  const auto plan = Plan(flags);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->world_size(), 4);
  EXPECT_EQ(plan->first_rank(), 0);
  EXPECT_EQ(plan->last_rank(), 3);
  EXPECT_TRUE(plan->has_coordinator());
  EXPECT_EQ(plan->coordinator, "");
  EXPECT_EQ(plan->master_host, "127.0.0.1");
  EXPECT_EQ(plan->master_port, 0);
  EXPECT_EQ(plan->job, "optshard");
  EXPECT_EQ(plan->log_level, "warning");
  EXPECT_TRUE(plan->server);
  EXPECT_THAT(plan->program, ElementsAre("./trainer", "--epochs=5"));
}

TEST(LaunchPlanTest, SecondNode_HasTheRanksAfterTheFirst) {
  const auto plan = Plan(Nodes(3, 1, "10.0.0.1:4700"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->world_size(), 6);
  EXPECT_EQ(plan->first_rank(), 2);
  EXPECT_FALSE(plan->has_coordinator());
  EXPECT_EQ(plan->master_host, "10.0.0.1");
  EXPECT_EQ(plan->master_port, 29500);
}

TEST(LaunchPlanTest, Slurm_SaysNodesAndRank_AndTheMasterTheCoordinator) {
  const auto plan = Plan(Ranks(4), SecondOfTwoBySlurm());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->nodes, 2);
  EXPECT_EQ(plan->node_rank, 1);
  EXPECT_EQ(plan->coordinator, "node0:6001");
  EXPECT_EQ(plan->master_host, "node0");
  EXPECT_EQ(plan->master_port, 6000);
}

TEST(LaunchPlanTest, Options_WinOverTheEnvironment) {
  LaunchFlags flags = Nodes(2, 0, "b:1");
  flags.master_port = 7;
  flags.job = "gan";
  flags.log_level = "debug";
  Environment environment = SecondOfTwoBySlurm();
  environment["OPTSHARD_JOB"] = "other";
  environment["OPTSHARD_LOG_LEVEL"] = "off";
  const auto plan = Plan(flags, environment);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->node_rank, 0);
  EXPECT_EQ(plan->coordinator, "b:1");
  EXPECT_EQ(plan->master_port, 7);
  EXPECT_EQ(plan->job, "gan");
  EXPECT_EQ(plan->log_level, "debug");
  environment.erase("OPTSHARD_JOB");
  EXPECT_EQ(Plan(Ranks(1), {{"OPTSHARD_JOB", "other"}})->job, "other");
}

TEST(LaunchPlanTest, OneNodeWithinALargerJob_IsNodeZero) {
  LaunchFlags flags = Ranks(2);
  flags.nodes = 1;
  const auto plan = Plan(flags, SecondOfTwoBySlurm());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->node_rank, 0);
  EXPECT_EQ(plan->coordinator, "");
}

TEST(LaunchPlanTest, OneNode_WithAnAddressForItsCoordinator_HasThat) {
  LaunchFlags flags = Ranks(2);
  flags.coordinator = "[::1]:4700";
  const auto plan = Plan(flags);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->coordinator, "[::1]:4700");
  EXPECT_EQ(plan->master_host, "::1");
  EXPECT_EQ(plan->master_port, 0);
}

TEST(LaunchPlanTest, MoreOptions_AreCutAtSpaces) {
  LaunchFlags flags = Ranks(1);
  flags.server_options = "--memory-limit=1GiB  --plane shm ";
  const auto plan = Plan(flags);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->server_options, ElementsAre("--memory-limit=1GiB", "--plane", "shm"));
}

TEST(LaunchPlanTest, WhatIsMissing_IsNamed) {
  EXPECT_THAT(Error(LaunchFlags()), HasSubstr("-n is missing"));
  LaunchFlags flags = Ranks(2);
  flags.nodes = 2;
  EXPECT_THAT(Error(flags), HasSubstr("--node-rank is missing: which of the 2 nodes"));
  flags.node_rank = 0;
  EXPECT_THAT(Error(flags), HasSubstr("--coordinator is missing: with --nnodes=2"));
}

TEST(LaunchPlanTest, WhatIsOutOfRange_IsNamedWithTheRange) {
  EXPECT_THAT(Error(Nodes(2, 2)), HasSubstr("--node-rank=2: expected 0 to 1, since --nnodes is 2"));
  LaunchFlags flags = Ranks(2);
  flags.node_rank = 1;
  EXPECT_THAT(Error(flags), HasSubstr("--nnodes is 1 where it is not given"));
  flags = Nodes(2, 0);
  flags.ranks = 1 << 20;
  EXPECT_THAT(Error(flags), HasSubstr("at most 1048576 ranks"));
  flags = Ranks(1);
  flags.master_port = 65536;
  EXPECT_THAT(Error(flags), HasSubstr("--master-port=65536: expected 1 to 65535"));
}

TEST(LaunchPlanTest, CoordinatorThatIsNoAddress_IsShown) {
  for (const char* const text :
       {"node0", "node0:", ":4700", "node0:0", "node0:65536", "::1:4700"}) {
    EXPECT_THAT(Error(Nodes(2, 0, text)), HasSubstr("\": expected HOST:PORT")) << text;
  }
}

TEST(LaunchPlanTest, RestartsWithoutServer_AreRefused) {
  LaunchFlags flags = Ranks(2);
  flags.server = false;
  flags.max_restarts = 1;
  EXPECT_THAT(Error(flags), HasSubstr("--max-restarts with --no-server"));
}

TEST(LaunchPlanTest, BadEnvironment_CountsOnlyWhereItIsAsked) {
  const Environment bad = {{"PET_NNODES", "1:4"}, {"PET_NPROC_PER_NODE", "auto"}};
  EXPECT_THAT(Error(LaunchFlags(), bad), HasSubstr("PET_NPROC_PER_NODE=\"auto\""));
  EXPECT_THAT(Error(Ranks(2), bad), HasSubstr("PET_NNODES=\"1:4\""));
  EXPECT_TRUE(Plan(Nodes(2, 1), bad).ok());
}

}  // namespace
}  // namespace optshard
