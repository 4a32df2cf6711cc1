// The demo as users run it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "tests/testing/command.h"
#include "tests/testing/trainers_run.h"

namespace optshard {
namespace {

using testing::AdoptOrphans;
using ::testing::AllOf;
using testing::Command;
using ::testing::HasSubstr;
using testing::WaitForNoChildren;

std::vector<std::string> Demo(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {
      Command::Runfile("examples/optshard-train-digits"),
      "--coordinator_binary=" + Command::Runfile("server/coordinator/optshard-coordinator"),
      "--server_binary=" + Command::Runfile("server/node/optshard-server"),
      "--data=" + Command::Runfile("../sklearn_digits/digits.csv.gz")};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

absl::Time In(int seconds) { return absl::Now() + absl::Seconds(seconds); }

class TrainDigitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::TrainersRun()) GTEST_SKIP() << testing::kTrainersCannotRun;
  }
};

TEST_F(TrainDigitsTest, Run_TwoRanks_LearnsWithTheSameBitsShardedAndUnsharded) {
  AdoptOrphans();
  const std::string path = ::testing::TempDir() + "/out/demo.json";
  Command demo(Demo({"--json=" + path}));
  EXPECT_EQ(*demo.Wait(In(120)), 0) << demo.output();
  EXPECT_THAT(demo.output(),
              AllOf(HasSubstr("ends after step 120"), HasSubstr("goes on after step 120")));
  EXPECT_THAT(demo.output(), AllOf(HasSubstr("epoch 12"), HasSubstr("are the same"),
                                   HasSubstr("torch::optim::Adam"), HasSubstr("exp_avg_sq")));
  EXPECT_TRUE(WaitForNoChildren(In(0)));

  nlohmann::json summary;
  std::ifstream(path) >> summary;
  EXPECT_GE(summary.at("accuracy_sharded"), 0.95);
  EXPECT_EQ(summary.at("accuracy_sharded"), summary.at("accuracy_unsharded"));
  EXPECT_GE(summary.at("accuracy_resumed"), 0.95);
  EXPECT_THAT(demo.output(), HasSubstr("Going on from step-000000000150 at 3 ranks"));
  EXPECT_EQ(summary.at("params_equal"), true);
  const std::vector<int64_t> bytes = summary.at("state_bytes_per_rank");
  ASSERT_EQ(bytes.size(), 2u);
  EXPECT_EQ(bytes[0] + bytes[1], summary.at("state_bytes_unsharded"));
  EXPECT_NEAR(bytes[0], bytes[1], 2 * 4 * 1024);  // Adam's two slots of one block
}

TEST_F(TrainDigitsTest, Run_WithoutAShardServer_GivesTheSameBits) {
  const auto checksums = [](const std::vector<std::string>& arguments) {
    Command demo(Demo(arguments));
    EXPECT_EQ(*demo.Wait(In(120)), 0) << demo.output();
    // The table's line, up to the bytes.
    const size_t line = demo.output().find("sharded over 2 ranks");
    return demo.output().substr(line, 70);
  };
  EXPECT_EQ(checksums({"--epochs=3", "--replace_after=40"}),
            checksums({"--epochs=3", "--shard_server=false"}));
}

TEST_F(TrainDigitsTest, Run_FourRanks_Works) {
  Command demo(Demo({"--ranks=4", "--epochs=1"}));
  EXPECT_EQ(*demo.Wait(In(120)), 0) << demo.output();
  EXPECT_THAT(demo.output(),
              AllOf(HasSubstr("on 4 ranks."),
                    HasSubstr("No checkpoint is saved: the training ends after step 22, before "
                              "--save-after=150")));
}

TEST_F(TrainDigitsTest, Run_OneRankWithTorchrunsVariables_RunsItsOwnCoordinator) {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  Command demo(Demo({"--epochs=1"}));
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  EXPECT_EQ(*demo.Wait(In(120)), 0) << demo.output();
  EXPECT_THAT(demo.output(), AllOf(HasSubstr("are the same"), HasSubstr("asked over gRPC")));
}

TEST_F(TrainDigitsTest, Run_TwoRanksWithTorchrunsVariables_FindEachOther) {
  setenv("WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  // Any port below the range from which the kernel chooses, so that the next one is free as well.
  setenv("MASTER_PORT", std::to_string(20000 + getpid() % 10000).c_str(), 1);
  std::vector<std::unique_ptr<Command>> ranks;
  for (const char* rank : {"0", "1"}) {
    setenv("RANK", rank, 1);
    ranks.push_back(std::make_unique<Command>(Demo({"--epochs=1"})));
  }
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
  for (const auto& rank : ranks) EXPECT_EQ(*rank->Wait(In(120)), 0) << rank->output();
  EXPECT_THAT(ranks[0]->output(), AllOf(HasSubstr("sharded over 2 ranks"), HasSubstr("epoch  1")));
  EXPECT_EQ(ranks[1]->output(), "");
}

TEST_F(TrainDigitsTest, Interrupt_DuringTraining_LeavesNoProcess) {
  AdoptOrphans();
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    Command demo(Demo({"--epochs=1000000"}));
    ASSERT_TRUE(demo.WaitForOutput("epoch  1", In(60))) << demo.output();
    demo.process().Signal(signal);
    EXPECT_NE(*demo.process().Wait(In(10)), 0) << demo.output();
    EXPECT_TRUE(WaitForNoChildren(In(5))) << strsignal(signal);
  }
}

TEST_F(TrainDigitsTest, Run_NoData_EndsWithAnErrorNamingIt) {
  AdoptOrphans();
  Command demo(Demo({"--data=/no/such/file"}));
  EXPECT_EQ(*demo.Wait(In(60)), 1);
  EXPECT_THAT(demo.output(), HasSubstr("/no/such/file"));
  EXPECT_TRUE(WaitForNoChildren(In(0)));
}

TEST_F(TrainDigitsTest, Run_NoCoordinatorBinary_EndsWithAnErrorNamingIt) {
  Command demo(Demo({"--coordinator_binary=/no/such/binary"}));
  EXPECT_EQ(*demo.Wait(In(60)), 1);
  EXPECT_THAT(demo.output(), HasSubstr("/no/such/binary"));
}

}  // namespace
}  // namespace optshard
