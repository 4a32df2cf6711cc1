#include "common/plan.h"

#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/node_runs.h"
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

TEST(Plan, Digest_DiffersWithWhatAPlanIsMadeOf) {
  const ParameterSpace space = RandomSpace(7);
  const auto digest = [&](PartitionPolicy policy, absl::Span<const std::string> nodes) {
    return MakePlan(1, space, policy, nodes)->Digest();
  };
  const uint64_t plain = digest(PartitionPolicy::kGreedy, {"a", "b", "a"});
  EXPECT_EQ(digest(PartitionPolicy::kGreedy, {"b", "c", "b"}), plain);
  EXPECT_EQ(MakePlan(2, space, PartitionPolicy::kGreedy, {"a", "b", "a"})->Digest(), plain);
  EXPECT_NE(digest(PartitionPolicy::kGreedy, {"a", "a", "b"}), plain);
  EXPECT_NE(digest(PartitionPolicy::kBalanced, {"a", "b", "a"}), plain);
  EXPECT_NE(digest(PartitionPolicy::kGreedy, {"a", "b", "a", "b"}), plain);
}

TEST(NodeRuns, RanksHoweverTheyLie_ComeBackInFewRuns) {
  const struct {
    std::vector<std::string> nodes;
    size_t runs;
  } kTable[] = {
      {{"a"}, 1},
      {{"a", "a", "b", "b", "c", "c"}, 1},
      {{"a", "a", "b", "b", "c"}, 2},
      {{"a", "b", "c", "a", "b", "c"}, 2},
      {{"a", "a", "b", "a", "c", "c", "b"}, 5},
  };
  for (const auto& row : kTable) {
    const ReductionTree tree = MakeReductionTree(row.nodes);
    const std::vector<NodeRun> runs = NodeRunsOf(tree);
    EXPECT_EQ(runs.size(), row.runs) << row.nodes.size();
    const absl::StatusOr<ReductionTree> back =
        ReductionTreeOf(runs, static_cast<int>(row.nodes.size()));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, tree);
  }
}

TEST(NodeRuns, RandomNodes_ComeBack) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<std::string> nodes(1 + random() % 40);
    for (std::string& node : nodes) node = absl::StrCat(random() % (1 + trial % 9));
    const ReductionTree tree = MakeReductionTree(nodes);
    const absl::StatusOr<ReductionTree> back =
        ReductionTreeOf(NodeRunsOf(tree), static_cast<int>(nodes.size()));
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_EQ(*back, tree);
  }
}

TEST(NodeRuns, Faults_AreInvalidAndNamed) {
  constexpr uint32_t kMany = std::numeric_limits<uint32_t>::max();
  const struct {
    std::vector<NodeRun> runs;
    std::string says;
  } kTable[] = {
      {{}, "of 0 ranks, expected 4"},
      {{{0, 3, 1}}, "of 3 ranks, expected 4"},
      {{{0, 5, 1}}, "1 node groups with 5 ranks each from rank 0 on"},
      {{{0, kMany, kMany}}, "from rank 0 on; ranks left for it: 4"},
      {{{0, 2, 1}, {0, 0, 7}}, "from rank 2 on; ranks left for it: 2"},
      {{{1, 4, 1}}, "goes on with node group 1 at rank 0, expected at most 0"},
      {{{0, 2, 1}, {kMany, 2, 1}}, "expected at most 1"},
  };
  for (const auto& row : kTable) {
    const absl::Status status = ReductionTreeOf(row.runs, 4).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.says;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.says));
  }
}

TEST(Plan, NoRanks_IsInvalid) {
  EXPECT_EQ(MakePlan(1, RandomSpace(7), PartitionPolicy::kGreedy, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace optshard
