#include "common/plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random_space.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ReductionTree, NodesInterleaved_AreGroupedInOrderOfTheirLowestRank) {
  const ReductionTree tree = MakeReductionTree({"b", "a", "b", "c", "a"});
  EXPECT_THAT(tree.node_groups, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 4), ElementsAre(3)));
  EXPECT_TRUE(CheckReductionTree(tree, 5).ok());
}

TEST(ReductionTree, OneNode_IsOneGroup) {
  EXPECT_THAT(MakeReductionTree({"a", "a", "a"}).node_groups, ElementsAre(ElementsAre(0, 1, 2)));
}

TEST(ReductionTree, NodesRenamed_GivesTheSameTree) {
  EXPECT_EQ(MakeReductionTree({"x", "y", "x"}), MakeReductionTree({"2", "1", "2"}));
}

TEST(CheckReductionTree, Faults_Each_AreNamed) {
  const struct {
    std::vector<std::vector<Rank>> groups;
    int world_size;
    std::string says;
  } kTable[] = {
      {{{0, 1}, {}}, 2, "node group 1 is empty"},
      {{{0}, {2}}, 2, "rank 2 in node group 1 is outside 0..1"},
      {{{-1, 0}}, 1, "rank -1"},
      {{{0, 1}, {1}}, 2, "rank 1 stands in it more than once"},
      {{{0, 2}}, 3, "rank 1 is missing"},
      {{}, 0, "world size 0"},
  };
  for (const auto& row : kTable) {
    const absl::Status status = CheckReductionTree({row.groups}, row.world_size);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.says;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.says));
  }
}

TEST(Plan, Made_FromSpaceAndNodes_HoldsPartitionAndTree) {
  const ParameterSpace space = RandomSpace(7);
  const absl::StatusOr<Plan> plan =
      MakePlan(12, space, PartitionPolicy::kBalanced, {"a", "b", "a"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->generation, 12u);
  EXPECT_EQ(plan->world_size, 3);
  EXPECT_EQ(plan->policy, PartitionPolicy::kBalanced);
  EXPECT_EQ(plan->partition.slices, MakePartition(space, 3, PartitionPolicy::kBalanced)->slices);
  EXPECT_EQ(plan->tree, MakeReductionTree({"a", "b", "a"}));
}

TEST(Plan, NoRanks_IsInvalid) {
  EXPECT_EQ(MakePlan(1, RandomSpace(7), PartitionPolicy::kGreedy, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace optshard
