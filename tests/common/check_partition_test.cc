// Partitions that are none: each fault is named.
#include <string>
#include <vector>

#include "common/partition.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random_space.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

TEST(CheckPartition, Faults_Each_AreNamed) {
  const ParameterSpace space = SpaceOf({{10, 0, 6}});
  const struct {
    std::vector<std::vector<Slice>> slices;
    std::string says;
  } kTable[] = {
      {{{{0, 0, 10}, {1, 0, 0}}, {}}, "\"parameter2\": elements [0, 6) have no owner"},
      {{{{0, 0, 10}}, {{2, 0, 6}}}, "\"parameter1\": elements [0, 0) have no owner"},
      {{{{0, 0, 4}, {1, 0, 0}}, {{2, 0, 6}}}, "\"parameter0\": elements [4, 10) have no owner"},
      {{{{0, 0, 4}, {1, 0, 0}}, {{0, 6, 4}, {2, 0, 6}}}, "elements [4, 6) have no owner"},
      {{{{0, 0, 4}, {1, 0, 0}}, {{0, 3, 7}, {2, 0, 6}}}, "[3, 10) of 10, which rank 0 owns too"},
      {{{{0, 0, 10}, {1, 0, 0}}, {{0, 0, 10}, {2, 0, 6}}}, "which rank 0 owns too"},
      {{{{0, 0, 10}, {1, 0, 0}}, {{1, 0, 0}, {2, 0, 6}}}, "\"parameter1\": rank 1 owns"},
      {{{{0, 0, 11}, {1, 0, 0}}, {{2, 0, 6}}}, "rank 0 owns 11 elements from 0 on, but it has 10"},
      {{{{0, 0, 10}, {1, 0, 0}}, {{2, -1, 7}}}, "from -1 on"},
      {{{{0, 0, 10}, {1, 0, 0}}, {{2, 0, 6}, {3, 0, 1}}}, "parameter 3, but there are 3"},
      {{{{1, 0, 0}, {0, 0, 10}}, {{2, 0, 6}}}, "not in order"},
      {{{{0, 0, 10}, {1, 0, 0}, {2, 0, 6}}, {{2, 6, 0}}}, "which is nothing"},
      {{}, "have no owner"},
  };
  for (const auto& row : kTable) {
    const absl::Status status = CheckPartition(space, {row.slices}, PartitionPolicy::kBalanced);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << row.says;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.says));
  }
}

TEST(CheckPartition, Replicated_OneRankLacksSomething_IsNamed) {
  const ParameterSpace space = SpaceOf({{10, 6}});
  const absl::Status status = CheckPartition(space, {{{{0, 0, 10}, {1, 0, 6}}, {{0, 0, 10}}}},
                                             PartitionPolicy::kReplicated);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"parameter1\""));
  EXPECT_FALSE(CheckPartition(space, {}, PartitionPolicy::kReplicated).ok());
}

}  // namespace
}  // namespace optshard
