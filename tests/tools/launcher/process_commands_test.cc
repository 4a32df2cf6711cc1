#include "tools/launcher/process_commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;
using ::testing::Pair;
using Environment = std::map<std::string, std::string>;

Variables Of(const Environment& environment) {
  return [&environment](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  };
}

class ProcessCommandsTest : public ::testing::Test {
 protected:
  ProcessCommandsTest() {
    plan_.ranks = 2;
    plan_.nodes = 2;
    plan_.node_rank = 1;
    plan_.job = "gan";
    plan_.log_level = "info";
    plan_.coordinator = "node0:4700";
    plan_.master_host = "node0";
    plan_.master_port = 29500;
    plan_.max_restarts = 3;
    places_.coordinator_binary = "bin/c";
    places_.server_binary = "bin/s";
    places_.coordinator_port_file = "t/c.port";
    places_.server_port_file = "t/s.port";
    places_.socket = "t/sock";
    places_.coordinator = "node0:4700";
  }

  LaunchPlan plan_;
  LaunchPlaces places_;
  Environment nothing_;
};

TEST_F(ProcessCommandsTest, Coordinator_OfSeveralNodes_EndsWithTheJob) {
  plan_.coordinator_options = {"--lease=9s"};
  EXPECT_THAT(CoordinatorCommand(plan_, places_),
              ElementsAre("bin/c", "--listen=node0:4700", "--job=gan", "--world-size=4",
                          "--port-file=t/c.port", "--join-timeout=50s", "--log-level=info",
                          "--exit-when-done", "--lease=9s"));
}

TEST_F(ProcessCommandsTest, Coordinator_OfOneNode_ListensOnTheLoopback) {
  plan_.nodes = 1;
  plan_.node_rank = 0;
  plan_.coordinator = "";
  EXPECT_THAT(CoordinatorCommand(plan_, places_),
              AllOf(Contains("--listen=127.0.0.1:0"), Contains("--world-size=2"),
                    Not(Contains("--exit-when-done"))));
}

TEST_F(ProcessCommandsTest, Server_HasItsNodesRanks_AndTheTrainersVariables) {
  plan_.server_options = {"--memory-limit=1GiB"};
  const Environment environment = {{"OPTSHARD_PLANE", "gloo"},
                                   {"OPTSHARD_INTERFACE", "eth1"},
                                   {"OPTSHARD_OWNER_LISTEN", "0.0.0.0:4800"}};
  EXPECT_THAT(ServerCommand(plan_, places_, Of(environment), absl::Seconds(2)),
              ElementsAre("bin/s", "--job=gan", "--node-ranks=2-3", "--coordinator=node0:4700",
                          "--socket=t/sock", "--port-file=t/s.port", "--drain-timeout=2s",
                          "--log-level=info", "--plane=gloo", "--interface=eth1",
                          "--owner-listen=0.0.0.0:4800", "--memory-limit=1GiB"));
}

// Those that torchrun 2.11 sets for a worker, and ours.
TEST_F(ProcessCommandsTest, Trainer_HasTorchrunsVariables) {
  EXPECT_THAT(
      TrainerVariables(plan_, places_, 3, 2, Of(nothing_)),
      ElementsAre(Pair("GROUP_RANK", "1"), Pair("GROUP_WORLD_SIZE", "2"), Pair("LOCAL_RANK", "1"),
                  Pair("LOCAL_WORLD_SIZE", "2"), Pair("MASTER_ADDR", "node0"),
                  Pair("MASTER_PORT", "29500"), Pair("OMP_NUM_THREADS", "1"),
                  Pair("OPTSHARD_ATTACH", "unix:t/sock"),
                  Pair("OPTSHARD_COORDINATOR", "node0:4700"), Pair("OPTSHARD_JOB", "gan"),
                  Pair("RANK", "3"), Pair("ROLE_NAME", "default"), Pair("ROLE_RANK", "3"),
                  Pair("ROLE_WORLD_SIZE", "4"), Pair("TORCHELASTIC_MAX_RESTARTS", "3"),
                  Pair("TORCHELASTIC_RESTART_COUNT", "2"), Pair("TORCHELASTIC_RUN_ID", "gan"),
                  Pair("TORCHELASTIC_USE_AGENT_STORE", "False"),
                  Pair("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"), Pair("WORLD_SIZE", "4")));
}

TEST_F(ProcessCommandsTest, Trainer_WithoutServer_EmbedsItsOwner) {
  plan_.server = false;
  EXPECT_THAT(TrainerVariables(plan_, places_, 2, 0, Of(nothing_)),
              Contains(Pair("OPTSHARD_ATTACH", "embedded")));
}

TEST_F(ProcessCommandsTest, Trainer_ThreadsOfTheUser_Stay) {
  const Environment environment = {{"OMP_NUM_THREADS", "4"}};
  EXPECT_EQ(TrainerVariables(plan_, places_, 2, 0, Of(environment)).count("OMP_NUM_THREADS"), 0u);
  plan_.ranks = 1;
  EXPECT_EQ(TrainerVariables(plan_, places_, 1, 0, Of(nothing_)).count("OMP_NUM_THREADS"), 0u);
}

TEST_F(ProcessCommandsTest, WithVariables_ReplacesThoseOfTheName) {
  const char* const environment[] = {"RANK=9", "RANKS=8", "HOME=/", "EMPTY=", nullptr};
  EXPECT_THAT(WithVariables(environment, {{"RANK", "1"}, {"NEW", "x"}}),
              ElementsAre("RANKS=8", "HOME=/", "EMPTY=", "NEW=x", "RANK=1"));
}

}  // namespace
}  // namespace optshard
