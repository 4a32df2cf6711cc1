// The recipe as users run it; small, but for one run of its own size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "tests/testing/command.h"
#include "tests/testing/trainers_run.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using testing::Command;
using ::testing::HasSubstr;

std::vector<std::string> Recipe(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {
      Command::Runfile("examples/optshard-recipe"),
      "--coordinator_binary=" + Command::Runfile("server/coordinator/optshard-coordinator")};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

absl::Time In(int seconds) { return absl::Now() + absl::Seconds(seconds); }

nlohmann::json RunForJson(std::vector<std::string> arguments) {
  const std::string path = ::testing::TempDir() + "/recipe.json";
  arguments.push_back("--json=" + path);
  Command recipe(Recipe(arguments));
  EXPECT_EQ(*recipe.Wait(In(240)), 0) << recipe.output();
  EXPECT_THAT(recipe.output(), HasSubstr("sum of the parameters"));
  nlohmann::json summary;
  std::ifstream(path) >> summary;
  return summary;
}

class RecipeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::TrainersRun()) GTEST_SKIP() << testing::kTrainersCannotRun;
  }
};

TEST_F(RecipeTest, Compare_ItsOwnSize_HalvesTheStateAndKeepsTheSums) {
  const nlohmann::json summary = RunForJson({});
  EXPECT_EQ(summary.at("sums_equal"), true);
  ASSERT_EQ(summary.at("runs").size(), 4u);
  const double parameters = 20 * (2000.0 * 2000 + 2000);
  for (const nlohmann::json& run : summary.at("runs")) {
    const double ranks = run.at("mode") == "sharded" ? 2 : 1;
    const double expected = parameters * 2 * sizeof(float) / ranks;
    EXPECT_NEAR(run.at("state_bytes").get<double>(), expected, 0.01 * expected) << run;
  }
  // A sharded rank also measures less: at least most of the 320 MB that it does not keep.
  EXPECT_LT(summary.at("runs").at(0).at("after_step_bytes").get<double>() + 250e6,
            summary.at("runs").at(2).at("after_step_bytes").get<double>());
}

TEST_F(RecipeTest, Compare_ThreeRanksInPlaceSeveralSteps_HasTheSameSums) {
  const nlohmann::json summary =
      RunForJson({"--layers=5", "--width=100", "--ranks=3", "--steps=3", "--bucket_view=off"});
  EXPECT_EQ(summary.at("sums_equal"), true);
  EXPECT_EQ(summary.at("runs").size(), 6u);
}

TEST_F(RecipeTest, OneMode_Sharded_ShowsItsRanksOnly) {
  const nlohmann::json summary = RunForJson({"--layers=2", "--width=10", "--mode=sharded"});
  ASSERT_EQ(summary.at("runs").size(), 2u);
  EXPECT_EQ(summary.at("runs").at(1).at("mode"), "sharded");
  EXPECT_EQ(summary.at("runs").at(1).at("rank"), 1);
}

TEST_F(RecipeTest, UnknownMode_IsAnErrorThatListsTheKnownOnes) {
  Command recipe(Recipe({"--mode=both"}));
  EXPECT_EQ(*recipe.Wait(In(60)), 2);
  EXPECT_THAT(recipe.output(),
              HasSubstr("--mode=both: expected one of sharded, unsharded, compare"));
}

}  // namespace
}  // namespace optshard
