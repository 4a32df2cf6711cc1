#include "common/partition.h"

#include <algorithm>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random_space.h"

namespace optshard {
namespace {

using Groups = std::vector<GroupSpec>;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr PartitionPolicy kPolicies[] = {PartitionPolicy::kGreedy, PartitionPolicy::kGreedyInOrder,
                                         PartitionPolicy::kBalanced, PartitionPolicy::kReplicated};
constexpr int kWorldSizes[] = {1, 2, 3, 4, 7, 40};

// The owner of each parameter, for partitions into whole parameters.
std::vector<Rank> Owners(const ParameterSpace& space, const Partition& partition) {
  std::vector<Rank> owners(space.parameter_count(), -1);
  for (size_t rank = 0; rank < partition.slices.size(); ++rank) {
    for (const Slice& slice : partition.slices[rank]) {
      EXPECT_EQ(slice.offset_elements, 0);
      EXPECT_EQ(slice.elements, space.parameter(slice.parameter).elements());
      owners[slice.parameter] = static_cast<Rank>(rank);
    }
  }
  return owners;
}

int64_t BytesOf(const ParameterSpace& space, const std::vector<Slice>& slices) {
  int64_t bytes = 0;
  for (const Slice& slice : slices) {
    bytes += slice.elements * static_cast<int64_t>(SizeOf(space.parameter(slice.parameter).dtype));
  }
  return bytes;
}

TEST(Partition, Greedy_GroupWithCosts_IsBalancedByThemAndApartFromTheOthers) {
  ParameterSpace space = SpaceOf({{5, 3, 3}, {8, 8, 8, 6, 0}, {2, 2}});
  std::vector<GroupSpec> groups = space.groups();
  const int64_t costs[] = {1, 30, 10, 20, 0};
  for (int i = 0; i < 5; ++i) groups[1].parameters[i].update_cost = costs[i];
  space = ParameterSpace(std::move(groups));
  // As PyTorch has it for the sizes {{5, 3, 3}, {2, 2}}; and 30, 20, 10, 1 by cost.
  EXPECT_THAT(Owners(space, *MakePartition(space, 2, PartitionPolicy::kGreedy)),
              ElementsAre(0, 1, 1, 0, 0, 1, 1, 1, 0, 1));
  // In their order: 1, 30, 10, 20.
  EXPECT_THAT(Owners(space, *MakePartition(space, 2, PartitionPolicy::kGreedyInOrder)),
              ElementsAre(0, 1, 1, 0, 1, 0, 0, 1, 0, 1));
}

TEST(Partition, AnyPolicy_RandomSpaces_CoversEveryElementOnceInOrder) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const ParameterSpace space = RandomSpace(seed);
    for (int world_size : kWorldSizes) {
      for (PartitionPolicy policy : kPolicies) {
        SCOPED_TRACE("seed " + std::to_string(seed) + " world " + std::to_string(world_size) +
                     " policy " + std::string(NameOf(policy)));
        const absl::StatusOr<Partition> partition = MakePartition(space, world_size, policy);
        ASSERT_TRUE(partition.ok()) << partition.status();
        ASSERT_EQ(partition->slices.size(), static_cast<size_t>(world_size));
        const absl::Status check = CheckPartition(space, *partition, policy);
        ASSERT_TRUE(check.ok()) << check;
        // Not by CheckPartition: as many elements as there are, and the same again when asked
        // again.
        int64_t elements = 0;
        for (const std::vector<Slice>& slices : partition->slices) {
          for (const Slice& slice : slices) elements += slice.elements;
        }
        ASSERT_EQ(elements, space.total_elements() *
                                (policy == PartitionPolicy::kReplicated ? world_size : 1));
        ASSERT_EQ(MakePartition(space, world_size, policy)->slices, partition->slices);
      }
    }
  }
}

TEST(Partition, AnyPolicy_GroupsAndParametersAdded_MoveNothing) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const ParameterSpace before = RandomSpace(seed);
    const ParameterSpace after = Grown(GrownWithin(before, seed + 1), seed + 2);
    ASSERT_TRUE(after.Validate().ok());
    for (const PartitionPolicy policy : kPolicies) {
      for (const int world_size : kWorldSizes) {
        SCOPED_TRACE("seed " + std::to_string(seed) + " world " + std::to_string(world_size) +
                     " policy " + std::string(NameOf(policy)));
        const Partition old = *MakePartition(before, world_size, policy);
        const Partition now = *MakePartition(after, world_size, policy);
        ASSERT_TRUE(CheckPartition(after, now, policy).ok());
        for (int rank = 0; rank < world_size; ++rank) {
          const std::vector<Slice>& slices = old.slices[rank];
          ASSERT_GE(now.slices[rank].size(), slices.size());
          ASSERT_TRUE(std::equal(slices.begin(), slices.end(), now.slices[rank].begin()));
        }
      }
    }
  }
}

TEST(Greedy, ParametersWithACostAddedToAGroupWithout_MoveNothing) {
  ParameterSpace space = SpaceOf({{3, 3, 3, 2, 2, 5}});
  const Partition before = *MakePartition(space, 2, PartitionPolicy::kGreedy);
  std::vector<GroupSpec> groups = space.groups();
  groups[0].additions = {{6, 1}};
  ParameterSpec costly = {"costly", {7}};
  costly.update_cost = 100;
  groups[0].parameters.push_back(costly);
  const Partition after =
      *MakePartition(ParameterSpace(std::move(groups)), 2, PartitionPolicy::kGreedy);
  EXPECT_EQ(after.slices[1], before.slices[1]);
  ASSERT_EQ(after.slices[0].size(), 4u);
  EXPECT_EQ(after.slices[0].back(), (Slice{6, 0, 7}));
}

TEST(Greedy, PyTorchsExample_OnTwoRanks_SplitsAsItDoes) {
  const ParameterSpace space = SpaceOf({{3, 3, 3, 2, 2, 5}});
  const Partition partition = *MakePartition(space, 2, PartitionPolicy::kGreedy);
  EXPECT_THAT(partition.slices[0], ElementsAre(Slice{2, 0, 3}, Slice{4, 0, 2}, Slice{5, 0, 5}));
  EXPECT_THAT(partition.slices[1], ElementsAre(Slice{0, 0, 3}, Slice{1, 0, 3}, Slice{3, 0, 2}));
}

struct Recorded {
  int world_size;
  std::vector<std::vector<int64_t>> groups;
  std::vector<Rank> owners;
};

// What ZeroRedundancyOptimizer._partition_parameters of torch 2.11 gives for parameters of these
// sizes, run on an instance made without its constructor (world_size and param_groups set by hand,
// tensors on the meta device), so that no process group was needed. The last eight are random.
const Recorded kRecorded[] = {
    {2, {{3, 3, 3, 2, 2, 5}}, {1, 1, 0, 1, 0, 0}},
    {3, {{7}}, {0}},
    {3, {{5, 5, 5, 5}}, {0, 1, 2, 0}},
    {2, {{0, 0, 4, 0}}, {1, 1, 0, 1}},
    {2, {{1, 2, 3}, {4, 5, 6}}, {1, 1, 0, 1, 1, 0}},
    {2, {{10}, {1, 1, 1, 1, 1, 1}, {3, 3}}, {0, 1, 1, 1, 1, 1, 1, 1, 1}},
    {3,
     {{4000000, 2000, 4000000, 2000, 4000000, 2000, 4000000, 2000, 4000000, 2000, 4000000, 2000}},
     {0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2}},
    {4, {{432, 16, 4608, 32, 18432, 64, 640, 10}}, {3, 3, 1, 3, 0, 3, 2, 3}},
    {6,
     {{6, 2, 3}, {1, 7, 0, 1, 3, 6, 0, 1}, {828, 6, 9, 4}},
     {0, 2, 1, 2, 3, 5, 1, 5, 4, 5, 2, 5, 2, 1, 0}},
    {1, {{0, 1, 4}}, {0, 0, 0}},
    {2,
     {{0, 3, 84, 3, 0, 234}, {34, 1, 6, 1, 1, 0, 1, 0, 383}, {4, 2, 0, 0, 0}},
     {1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0}},
    {3, {{1, 715, 3, 1, 8}, {3}}, {2, 0, 2, 2, 1, 2}},
    {5, {{6, 0, 7, 1}}, {1, 3, 0, 2}},
    {3, {{2, 1, 9, 528, 3}}, {2, 2, 1, 0, 2}},
    {5, {{1, 926, 4}, {1}}, {2, 0, 1, 3}},
    {4,
     {{1, 0, 3, 1, 1}, {50, 9, 3, 4, 1}, {3, 8, 1, 6}},
     {1, 1, 0, 2, 3, 1, 2, 0, 3, 3, 2, 0, 3, 3}},
};

TEST(Greedy, RecordedExamples_FromPyTorch_AreEqual) {
  for (const Recorded& recorded : kRecorded) {
    const ParameterSpace space = SpaceOf(recorded.groups);
    const Partition partition =
        *MakePartition(space, recorded.world_size, PartitionPolicy::kGreedy);
    EXPECT_EQ(Owners(space, partition), recorded.owners)
        << "example " << &recorded - kRecorded << ", " << recorded.world_size << " ranks";
  }
}

// The definition, step by step: again and again the largest parameter left in the group (the first
// of several; without `sort` just the first) goes to the rank with the least so far.
std::vector<Rank> GreedyByDefinition(const ParameterSpace& space, int world_size, bool sort) {
  std::vector<Rank> owners(space.parameter_count(), -1);
  std::map<Rank, int64_t> load;
  for (Rank rank = 0; rank < world_size; ++rank) load[rank] = 0;
  for (int group = 0; group < space.group_count(); ++group) {
    while (true) {
      int chosen = -1;
      for (int i = 0; i < space.parameter_count(); ++i) {
        if (space.group_of(i) != group || owners[i] >= 0) continue;
        if (chosen < 0 ||
            (sort && space.parameter(i).elements() > space.parameter(chosen).elements())) {
          chosen = i;
        }
      }
      if (chosen < 0) break;
      Rank least = 0;
      for (const auto& [rank, elements] : load) {
        if (elements < load[least]) least = rank;
      }
      owners[chosen] = least;
      load[least] += space.parameter(chosen).elements();
    }
  }
  return owners;
}

TEST(Greedy, RandomSpaces_BothVariants_FollowTheDefinition) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const ParameterSpace space = RandomSpace(seed);
    for (int world_size : kWorldSizes) {
      for (bool sort : {true, false}) {
        const Partition partition = *MakePartition(
            space, world_size, sort ? PartitionPolicy::kGreedy : PartitionPolicy::kGreedyInOrder);
        ASSERT_EQ(Owners(space, partition), GreedyByDefinition(space, world_size, sort))
            << "seed " << seed << " world " << world_size << " sort " << sort;
      }
    }
  }
}

TEST(Greedy, GroupAdded_ToASpace_MovesNoParameter) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const ParameterSpace before = RandomSpace(seed);
    std::vector<GroupSpec> groups = before.groups();
    groups.push_back({{{"added0", {7000}}, {"added1", {3}}}});
    const ParameterSpace after(groups);
    for (PartitionPolicy policy : {PartitionPolicy::kGreedy, PartitionPolicy::kGreedyInOrder}) {
      const std::vector<Rank> old = Owners(before, *MakePartition(before, 3, policy));
      std::vector<Rank> now = Owners(after, *MakePartition(after, 3, policy));
      now.resize(old.size());
      EXPECT_EQ(now, old) << "seed " << seed;
    }
  }
}

TEST(Greedy, MoreRanksThanParameters_LeavesTheLastOnesEmpty) {
  const Partition partition = *MakePartition(SpaceOf({{4, 9}}), 4, PartitionPolicy::kGreedy);
  EXPECT_THAT(partition.slices[0], ElementsAre(Slice{1, 0, 9}));
  EXPECT_THAT(partition.slices[1], ElementsAre(Slice{0, 0, 4}));
  EXPECT_THAT(partition.slices[2], IsEmpty());
  EXPECT_THAT(partition.slices[3], IsEmpty());
}

TEST(Balanced, RandomSpaces_Slices_AreAlignedAndWalkTheParametersInOrder) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const ParameterSpace space = RandomSpace(seed);
    for (int world_size : kWorldSizes) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " world " + std::to_string(world_size));
      const Partition partition = *MakePartition(space, world_size, PartitionPolicy::kBalanced);
      int parameter = 0;
      int64_t offset = 0;
      for (const std::vector<Slice>& slices : partition.slices) {
        for (const Slice& slice : slices) {
          ASSERT_EQ(slice.parameter, parameter);
          ASSERT_EQ(slice.offset_elements, offset);
          ASSERT_EQ(offset % kBalancedBlock, 0);
          offset += slice.elements;
          if (offset == space.parameter(parameter).elements()) {
            ++parameter;
            offset = 0;
          }
        }
      }
      ASSERT_EQ(parameter, space.parameter_count());
    }
  }
}

TEST(Balanced, RandomSpaces_EveryOwner_IsWithinOneBlockOfTheMeanBytes) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const ParameterSpace space = RandomSpace(seed);
    int64_t block = 0;
    for (int i = 0; i < space.parameter_count(); ++i) {
      block =
          std::max(block, kBalancedBlock * static_cast<int64_t>(SizeOf(space.parameter(i).dtype)));
    }
    const int64_t total =
        BytesOf(space, MakePartition(space, 1, PartitionPolicy::kBalanced)->slices[0]);
    for (int world_size : kWorldSizes) {
      const Partition partition = *MakePartition(space, world_size, PartitionPolicy::kBalanced);
      for (int rank = 0; rank < world_size; ++rank) {
        const double mean = static_cast<double>(total) / world_size;
        ASSERT_LE(std::abs(static_cast<double>(BytesOf(space, partition.slices[rank])) - mean),
                  static_cast<double>(block))
            << "seed " << seed << " world " << world_size << " rank " << rank;
      }
    }
  }
}

TEST(Balanced, GroupAdded_IsDividedAmongAllRanks) {
  std::vector<GroupSpec> groups = SpaceOf({{8192}, {4096}}).groups();
  groups[1].admission = 1;
  const Partition partition = *MakePartition(ParameterSpace(groups), 2, PartitionPolicy::kBalanced);
  EXPECT_THAT(partition.slices[0], ElementsAre(Slice{0, 0, 4096}, Slice{1, 0, 2048}));
  EXPECT_THAT(partition.slices[1], ElementsAre(Slice{0, 4096, 4096}, Slice{1, 2048, 2048}));
}

TEST(Balanced, TwiceTheRanks_EachShare_IsSplitInTwo) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const ParameterSpace space = RandomSpace(seed);
    for (int world_size : {1, 2, 3, 5}) {
      const Partition half = *MakePartition(space, world_size, PartitionPolicy::kBalanced);
      const Partition full = *MakePartition(space, 2 * world_size, PartitionPolicy::kBalanced);
      for (size_t rank = 0; rank < half.slices.size(); ++rank) {
        std::vector<Slice> joined = full.slices[2 * rank];
        for (const Slice& slice : full.slices[2 * rank + 1]) {
          if (!joined.empty() && joined.back().parameter == slice.parameter) {
            joined.back().elements += slice.elements;
          } else {
            joined.push_back(slice);
          }
        }
        ASSERT_EQ(joined, half.slices[rank])
            << "seed " << seed << " world " << world_size << " rank " << rank;
      }
    }
  }
}

TEST(Balanced, EqualParameters_OnTwoRanks_AreSplitInTheMiddle) {
  const Partition partition =
      *MakePartition(SpaceOf({{4096, 4096}, {4096}}), 2, PartitionPolicy::kBalanced);
  EXPECT_THAT(partition.slices[0], ElementsAre(Slice{0, 0, 4096}, Slice{1, 0, 2048}));
  EXPECT_THAT(partition.slices[1], ElementsAre(Slice{1, 2048, 2048}, Slice{2, 0, 4096}));
}

TEST(Balanced, MixedDTypes_AreBalancedByBytes) {
  // 16 Ki elements of 8 bytes weigh as much as 64 Ki of 2.
  const ParameterSpace space(
      {{{{"a", {16384}, DType::kFloat64}}}, {{{"b", {65536}, DType::kBFloat16}}}});
  const Partition partition = *MakePartition(space, 4, PartitionPolicy::kBalanced);
  EXPECT_THAT(partition.slices[0], ElementsAre(Slice{0, 0, 8192}));
  EXPECT_THAT(partition.slices[1], ElementsAre(Slice{0, 8192, 8192}));
  EXPECT_THAT(partition.slices[2], ElementsAre(Slice{1, 0, 32768}));
  EXPECT_THAT(partition.slices[3], ElementsAre(Slice{1, 32768, 32768}));
}

TEST(Balanced, MoreRanksThanBlocks_LeavesSomeEmpty) {
  const Partition partition = *MakePartition(SpaceOf({{2000}}), 4, PartitionPolicy::kBalanced);
  EXPECT_THAT(partition.slices[0], IsEmpty());
  EXPECT_THAT(partition.slices[1], IsEmpty());
  EXPECT_THAT(partition.slices[2], ElementsAre(Slice{0, 0, 1024}));
  EXPECT_THAT(partition.slices[3], ElementsAre(Slice{0, 1024, 976}));
}

TEST(Balanced, OnlyZeroSizes_GoToTheFirstRank) {
  const Partition partition = *MakePartition(SpaceOf({{0, 0}}), 3, PartitionPolicy::kBalanced);
  EXPECT_THAT(partition.slices[0], ElementsAre(Slice{0, 0, 0}, Slice{1, 0, 0}));
  EXPECT_THAT(partition.slices[1], IsEmpty());
}

TEST(Balanced, LargestSpace_ManyRanks_DoesNotOverflow) {
  const ParameterSpace space(Groups{{{{"a", {kMaxSpaceBytes / 2}, DType::kFloat16}}}});
  for (int world_size : {1, 7, 100000}) {
    const Partition partition = *MakePartition(space, world_size, PartitionPolicy::kBalanced);
    EXPECT_TRUE(CheckPartition(space, partition, PartitionPolicy::kBalanced).ok());
  }
}

TEST(Replicated, EveryRank_OwnsEverything) {
  const Partition partition =
      *MakePartition(SpaceOf({{5, 0}, {3000}}), 3, PartitionPolicy::kReplicated);
  for (const std::vector<Slice>& slices : partition.slices) {
    EXPECT_THAT(slices, ElementsAre(Slice{0, 0, 5}, Slice{1, 0, 0}, Slice{2, 0, 3000}));
  }
}

TEST(Partition, BadArguments_AreSaid) {
  const ParameterSpace space = SpaceOf({{5}});
  for (int world_size : {0, -1}) {
    const absl::Status status = MakePartition(space, world_size, PartitionPolicy::kGreedy).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("world size"));
  }
  const ParameterSpace bad(Groups{{{{"", {1}}}}});
  EXPECT_EQ(MakePartition(bad, 1, PartitionPolicy::kGreedy).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakePartition(space, 1, static_cast<PartitionPolicy>(9)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(PartitionPolicy, Name_Each_ParsesBack) {
  for (PartitionPolicy policy : kPolicies) {
    const absl::StatusOr<PartitionPolicy> parsed = ParsePartitionPolicy(NameOf(policy));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, policy);
  }
  const absl::Status status = ParsePartitionPolicy("fair").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("greedy, greedy_in_order, balanced, replicated"));
}

}  // namespace
}  // namespace optshard
