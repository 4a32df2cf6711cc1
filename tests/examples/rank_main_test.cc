#include "examples/rank_main.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "common/cli/command_line.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

// The level of rank 0 of one, and of the services of a job, for this command line.
void ExpectLogLevel(const std::vector<std::string>& arguments, const std::string& expected) {
  RankFlags flags;
  CommandLine line({"program", "A program.", {"program"}});
  AddRankOptions(line, &flags);
  ASSERT_TRUE(line.Parse(arguments).ok());
  EXPECT_EQ(LauncherOptions(flags, "job").services.log_level, expected);
  flags.rank = 0;
  EXPECT_EQ(RankOptions(flags).log_level, expected);
}

class RankMainTest : public ::testing::Test {
 protected:
  ~RankMainTest() override { unsetenv("OPTSHARD_LOG_LEVEL"); }
};

TEST_F(RankMainTest, NoLogLevel_IsWarning) {
  unsetenv("OPTSHARD_LOG_LEVEL");
  ExpectLogLevel({}, "warning");
  setenv("OPTSHARD_LOG_LEVEL", "", 1);
  ExpectLogLevel({}, "warning");
}

TEST_F(RankMainTest, LogLevelOfTheEnvironment_IsTheDefault) {
  setenv("OPTSHARD_LOG_LEVEL", "debug", 1);
  ExpectLogLevel({}, "debug");
}

TEST_F(RankMainTest, LogLevelOfTheCommandLine_WinsOverTheEnvironment) {
  setenv("OPTSHARD_LOG_LEVEL", "debug", 1);
  ExpectLogLevel({"--log-level=error"}, "error");
}

}  // namespace
}  // namespace optshard
