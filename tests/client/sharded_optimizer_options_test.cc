#include "client/sharded_optimizer_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace optshard {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<ShardedOptimizerOptions> From(const std::map<std::string, std::string>& variables) {
  return ShardedOptimizerOptions::FromVariables([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(ShardedOptimizerOptionsTest, FromVariables_NothingSet_IsOneRankAlone) {
  const auto options = From({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->rank, 0);
  EXPECT_EQ(options->world_size, 1);
  EXPECT_EQ(options->coordinator, "");
  EXPECT_EQ(options->embedded_coordinator, "");
}

TEST(ShardedOptimizerOptionsTest, FromVariables_Torchrun_TakesRankAndNextPort) {
  const auto options = From(
      {{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->rank, 2);
  EXPECT_EQ(options->world_size, 4);
  EXPECT_EQ(options->coordinator, "");
  EXPECT_EQ(options->embedded_coordinator, "node0:29501");
}

TEST(ShardedOptimizerOptionsTest, FromVariables_Coordinator_IsUsedInsteadOfTheMaster) {
  const auto options = From({{"OPTSHARD_COORDINATOR", "control:7000"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->coordinator, "control:7000");
  EXPECT_EQ(options->embedded_coordinator, "");
}

TEST(ShardedOptimizerOptionsTest, FromVariables_OwnVariables_AreTaken) {
  const auto options = From({{"OPTSHARD_JOB", "gan"},
                             {"OPTSHARD_INTERFACE", "eth1"},
                             {"OPTSHARD_OWNER_LISTEN", "0.0.0.0:7001"},
                             {"OPTSHARD_NODE", "a"},
                             {"OPTSHARD_LOG_LEVEL", "info"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->job, "gan");
  EXPECT_EQ(options->interface, "eth1");
  EXPECT_EQ(options->owner_listen, "0.0.0.0:7001");
  EXPECT_EQ(options->node, "a");
  EXPECT_EQ(options->log_level, "info");
}

struct BadVariables {
  std::map<std::string, std::string> variables;
  std::vector<std::string> said;
};

class BadVariablesTest : public ::testing::TestWithParam<BadVariables> {};

TEST_P(BadVariablesTest, FromVariables_BadValue_NamesVariableAndValue) {
  const auto options = From(GetParam().variables);
  EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
  for (const std::string& text : GetParam().said) {
    EXPECT_THAT(std::string(options.status().message()), HasSubstr(text));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadVariablesTest,
    ::testing::Values(
        BadVariables{{{"RANK", "0"}}, {"RANK is set but WORLD_SIZE is not"}},
        BadVariables{{{"WORLD_SIZE", "2"}}, {"WORLD_SIZE is set but RANK is not"}},
        BadVariables{{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {"RANK=\"2\"", "from 0 to 1"}},
        BadVariables{{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, {"RANK=\"-1\""}},
        BadVariables{{{"RANK", "0"}, {"WORLD_SIZE", "two"}}, {"WORLD_SIZE=\"two\""}},
        BadVariables{{{"MASTER_ADDR", "a"}, {"MASTER_PORT", "x"}}, {"MASTER_PORT=\"x\""}},
        BadVariables{{{"MASTER_ADDR", "a"}, {"MASTER_PORT", "65535"}}, {"to 65534"}}));

}  // namespace
}  // namespace optshard
