#include "client/sharded_optimizer_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

std::function<const char*(const char*)> Source(
    const std::map<std::string, std::string>& variables) {
  return [&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

absl::StatusOr<ShardedOptimizerOptions> From(const std::map<std::string, std::string>& variables) {
  return ShardedOptimizerOptions::FromVariables(Source(variables));
}

using Variables = std::map<std::string, std::string>;

absl::StatusOr<ShardedOptimizerOptions> WithKnown(absl::optional<Rank> rank,
                                                  absl::optional<int> world_size,
                                                  const Variables& variables) {
  ShardedOptimizerOptions options;
  if (rank) options.rank = *rank;
  if (world_size) options.world_size = *world_size;
  return WithKnownRank(options, Source(variables));
}

TEST(ShardedOptimizerOptionsTest, WithKnownRank_NothingSet_IsAnErrorAlsoUnderTorchrun) {
  const auto alone = WithKnown({}, {}, {});
  EXPECT_EQ(alone.status().code(), absl::StatusCode::kInvalidArgument);
  for (const char* said : {"rank is not set", "world_size is not set", "RANK is not set",
                           "WORLD_SIZE is not set", "FromEnvironment()", "world_size = 1"}) {
    EXPECT_THAT(std::string(alone.status().message()), HasSubstr(said));
  }
  const auto torchrun = WithKnown({}, {}, {{"RANK", "2"}, {"WORLD_SIZE", "4"}});
  EXPECT_EQ(torchrun.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(torchrun.status().message()), HasSubstr("RANK=2, WORLD_SIZE=4"));
}

TEST(ShardedOptimizerOptionsTest, WithKnownRank_OneOfTwoSet_IsAnError) {
  const auto rank_only = WithKnown(1, {}, {});
  EXPECT_EQ(rank_only.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(rank_only.status().message()),
              HasSubstr("rank is 1 and world_size is not set"));
  const auto size_only = WithKnown({}, 2, {});
  EXPECT_EQ(size_only.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(size_only.status().message()),
              HasSubstr("rank is not set and world_size is 2"));
}

TEST(ShardedOptimizerOptionsTest, WithKnownRank_WorldSizeOne_IsRankZero) {
  const auto options = WithKnown({}, 1, {});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->rank, 0);
  EXPECT_EQ(options->world_size, 1);
}

TEST(ShardedOptimizerOptionsTest, WithKnownRank_SetExplicitly_WinsOverTheEnvironment) {
  const auto options = WithKnown(1, 3, {{"RANK", "0"}, {"WORLD_SIZE", "8"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->rank, 1);
  EXPECT_EQ(options->world_size, 3);
  EXPECT_TRUE(WithKnown(0, 1, {{"RANK", "0"}, {"WORLD_SIZE", "8"}}).ok());
}

TEST(ShardedOptimizerOptionsTest, WithKnownRank_OutOfRange_IsAnError) {
  for (const auto& [rank, world_size] : {std::pair(2, 2), std::pair(-2, 2), std::pair(0, 0)}) {
    const auto options = WithKnown(rank, world_size, {});
    EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(options.status().message()),
                HasSubstr(absl::StrCat("rank is ", rank, " and world_size is ", world_size)));
  }
}

TEST(ShardedOptimizerOptionsTest, FromVariables_OneRank_IsOneRankAlone) {
  const auto options = From({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
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

TEST(ShardedOptimizerOptionsTest, FromVariables_NodeAndPlaceThere_SayTheRank) {
  std::vector<Rank> ranks;
  for (const char* node : {"0", "1", "2"}) {
    for (const char* local : {"0", "1"}) {
      const auto options = From({{"GROUP_RANK", node},
                                 {"LOCAL_RANK", local},
                                 {"LOCAL_WORLD_SIZE", "2"},
                                 {"WORLD_SIZE", "6"}});
      ASSERT_TRUE(options.ok()) << options.status();
      EXPECT_EQ(options->world_size, 6);
      ranks.push_back(options->rank);
    }
  }
  EXPECT_EQ(ranks, (std::vector<Rank>{0, 1, 2, 3, 4, 5}));
}

TEST(ShardedOptimizerOptionsTest, FromVariables_RankOfTorchrun_WinsOverItsNode) {
  // Of three nodes with 1, 2 and 1 ranks.
  const auto options = From({{"RANK", "2"},
                             {"GROUP_RANK", "1"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"WORLD_SIZE", "4"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->rank, 2);
}

TEST(ShardedOptimizerOptionsTest, FromVariables_Srun_TakesTheTask) {
  const auto options = From({{"SLURM_PROCID", "2"},
                             {"SLURM_STEP_NUM_TASKS", "4"},
                             {"SLURM_STEP_NUM_NODES", "2"},
                             {"SLURM_NODEID", "1"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->rank, 2);
  EXPECT_EQ(options->world_size, 4);
  EXPECT_EQ(options->embedded_coordinator, "node0:29501");
}

TEST(ShardedOptimizerOptionsTest, FromVariables_BatchScript_IsNoRank) {
  const auto options = From({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}});
  EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ShardedOptimizerOptionsTest, FromVariables_RankWithinMpirun_WinsOverTheTask) {
  const auto options = From({{"RANK", "1"},
                             {"WORLD_SIZE", "2"},
                             {"OMPI_COMM_WORLD_RANK", "3"},
                             {"OMPI_COMM_WORLD_SIZE", "8"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->rank, 1);
  EXPECT_EQ(options->world_size, 2);
}

TEST(ShardedOptimizerOptionsTest, FromVariables_Coordinator_IsUsedInsteadOfTheMaster) {
  const auto options = From({{"RANK", "0"},
                             {"WORLD_SIZE", "1"},
                             {"OPTSHARD_COORDINATOR", "control:7000"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->coordinator, "control:7000");
  EXPECT_EQ(options->embedded_coordinator, "");
}

TEST(ShardedOptimizerOptionsTest, FromVariables_OwnVariables_AreTaken) {
  const auto options = From({{"RANK", "0"},
                             {"WORLD_SIZE", "1"},
                             {"OPTSHARD_JOB", "gan"},
                             {"OPTSHARD_INTERFACE", "eth1"},
                             {"OPTSHARD_OWNER_LISTEN", "0.0.0.0:7001"},
                             {"OPTSHARD_NODE", "a"},
                             {"OPTSHARD_JOIN_TIMEOUT", "10m"},
                             {"OPTSHARD_LOG_LEVEL", "info"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->job, "gan");
  EXPECT_EQ(options->interface, "eth1");
  EXPECT_EQ(options->owner_listen, "0.0.0.0:7001");
  EXPECT_EQ(options->node, "a");
  EXPECT_EQ(options->join_timeout, absl::Minutes(10));
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
        BadVariables{{}, {"RANK and WORLD_SIZE are not set", "RANK=0 WORLD_SIZE=1"}},
        BadVariables{{{"PMI_RANK", "4"}, {"PMI_SIZE", "4"}}, {"PMI_RANK=\"4\"", "from 0 to 3"}},
        BadVariables{{{"RANK", "0"}}, {"RANK is set but WORLD_SIZE is not"}},
        BadVariables{{{"WORLD_SIZE", "2"}}, {"WORLD_SIZE is set but RANK is not", "GROUP_RANK"}},
        BadVariables{{{"WORLD_SIZE", "2"}, {"GROUP_RANK", "0"}, {"LOCAL_RANK", "0"}},
                     {"WORLD_SIZE is set but RANK is not", "LOCAL_WORLD_SIZE"}},
        BadVariables{{{"WORLD_SIZE", "4"},
                      {"GROUP_RANK", "2"},
                      {"LOCAL_RANK", "0"},
                      {"LOCAL_WORLD_SIZE", "2"}},
                     {"GROUP_RANK=\"2\"", "from 0 to 1"}},
        BadVariables{{{"WORLD_SIZE", "4"},
                      {"GROUP_RANK", "1"},
                      {"LOCAL_RANK", "2"},
                      {"LOCAL_WORLD_SIZE", "2"}},
                     {"LOCAL_RANK=\"2\"", "from 0 to 1"}},
        BadVariables{{{"WORLD_SIZE", "5"},
                      {"GROUP_RANK", "1"},
                      {"LOCAL_RANK", "0"},
                      {"LOCAL_WORLD_SIZE", "2"}},
                     {"WORLD_SIZE=5", "LOCAL_WORLD_SIZE=2", "set RANK"}},
        BadVariables{{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"OPTSHARD_JOIN_TIMEOUT", "10"}},
                     {"OPTSHARD_JOIN_TIMEOUT=\"10\"", "10m"}},
        BadVariables{{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"OPTSHARD_JOIN_TIMEOUT", "-1s"}},
                     {"OPTSHARD_JOIN_TIMEOUT=\"-1s\""}},
        BadVariables{{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"OPTSHARD_JOIN_TIMEOUT", "inf"}},
                     {"OPTSHARD_JOIN_TIMEOUT=\"inf\"", "finite"}},
        BadVariables{{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {"RANK=\"2\"", "from 0 to 1"}},
        BadVariables{{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, {"RANK=\"-1\""}},
        BadVariables{{{"RANK", "0"}, {"WORLD_SIZE", "two"}}, {"WORLD_SIZE=\"two\""}},
        BadVariables{
            {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "x"}},
            {"MASTER_PORT=\"x\""}},
        BadVariables{
            {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "65535"}},
            {"to 65534"}}));

}  // namespace
}  // namespace optshard
