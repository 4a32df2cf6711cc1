// Who owns what, as a trainer is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "client/sharded_optimizer.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RunRanks;
using testing::Sgd;
using torch::optim::OptimizerParamGroup;

// Every rank runs `body` with an optimizer of three groups, of which the second is empty.
void WithGroups(int world_size, PartitionPolicy policy,
                const std::function<void(ShardedOptimizer&)>& body) {
  const std::vector<absl::Status> statuses =
      RunRanks(world_size, [&](ShardedOptimizerOptions options) {
        options.policy = policy;
        std::vector<OptimizerParamGroup> groups;
        groups.emplace_back(
            std::vector<at::Tensor>{Parameter({3}, 1), Parameter({3}, 1), Parameter({5}, 1)});
        groups.emplace_back(std::vector<at::Tensor>{});
        groups.emplace_back(std::vector<at::Tensor>{Parameter({4, 1024}, 1), Parameter({0}, 1)},
                            std::make_unique<RuleOptions>(Sgd(0.5)));
        ShardedOptimizer optimizer(groups, Sgd(0.25).Set("momentum", 0.5), options);
        body(optimizer);
        optimizer.Close();
      });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

// The numbers of elements, by group, as "3 5||4096".
std::string SizesOf(const std::vector<OptimizerParamGroup>& groups) {
  std::vector<std::string> texts;
  for (const OptimizerParamGroup& group : groups) {
    std::vector<std::string> sizes;
    for (const at::Tensor& each : group.params()) sizes.push_back(std::to_string(each.numel()));
    texts.push_back(absl::StrJoin(sizes, " "));
  }
  return absl::StrJoin(texts, "|");
}

TEST(OwnerOfTest, PartitionParameters_Greedy_DividesWholeParametersAndKeepsEmptyGroups) {
  WithGroups(3, PartitionPolicy::kGreedy, [](ShardedOptimizer& optimizer) {
    optimizer.param_groups()[2].options().set_lr(0.125);
    const auto divided = optimizer.partition_parameters();
    ASSERT_EQ(divided.size(), 3u);
    EXPECT_EQ(SizesOf(divided[0]), "5||");
    EXPECT_EQ(SizesOf(divided[1]), "3||4096");
    EXPECT_EQ(SizesOf(divided[2]), "3||0");
    EXPECT_TRUE(divided[0][0].params()[0].is_same(optimizer.param_groups()[0].params()[2]));
    for (const auto& groups : divided) {
      EXPECT_EQ(groups[0].options().get_lr(), 0.25);
      EXPECT_EQ(groups[2].options().get_lr(), 0.125);
    }
  });
}

// The rule keeps one float32 slot.
TEST(OwnerOfTest, InEveryPolicy_IsWhoKeepsTheState) {
  for (const PartitionPolicy policy : {PartitionPolicy::kGreedy, PartitionPolicy::kGreedyInOrder,
                                       PartitionPolicy::kBalanced, PartitionPolicy::kReplicated}) {
    WithGroups(3, policy, [policy](ShardedOptimizer& optimizer) {
      const Rank rank = optimizer.options().rank;
      const auto divided = optimizer.partition_parameters();
      int64_t elements = 0;
      for (const OptimizerParamGroup& group : divided[rank]) {
        for (const at::Tensor& each : group.params()) {
          for (const OwnedRange& range : optimizer.owner_of(each)) {
            if (range.rank == rank) elements += range.elements;
          }
        }
      }
      EXPECT_EQ(4 * elements, optimizer.state_bytes()) << NameOf(policy) << ", rank " << rank;
    });
  }
}

TEST(OwnerOfTest, Balanced_GivesEachRanksRange) {
  WithGroups(3, PartitionPolicy::kBalanced, [](ShardedOptimizer& optimizer) {
    EXPECT_THAT(optimizer.owner_of(0), ElementsAre(OwnedRange{0, 0, 3}));
    EXPECT_THAT(
        optimizer.owner_of(optimizer.param_groups()[2].params()[0]),
        ElementsAre(OwnedRange{0, 0, 1024}, OwnedRange{1, 1024, 1024}, OwnedRange{2, 2048, 2048}));
    EXPECT_THAT(optimizer.owner_of(4), ElementsAre(OwnedRange{2, 0, 0}));
    const auto divided = optimizer.partition_parameters();
    EXPECT_EQ(SizesOf(divided[0]), "3 3 5||4096");
    EXPECT_EQ(SizesOf(divided[1]), "||4096");
    EXPECT_EQ(SizesOf(divided[2]), "||4096 0");
  });
}

TEST(OwnerOfTest, Replicated_IsEveryRank) {
  WithGroups(2, PartitionPolicy::kReplicated, [](ShardedOptimizer& optimizer) {
    EXPECT_THAT(optimizer.owner_of(2), ElementsAre(OwnedRange{0, 0, 5}, OwnedRange{1, 0, 5}));
    const auto divided = optimizer.partition_parameters();
    EXPECT_EQ(SizesOf(divided[0]), SizesOf(optimizer.param_groups()));
    EXPECT_EQ(SizesOf(divided[1]), SizesOf(optimizer.param_groups()));
  });
}

TEST(OwnerOfTest, WhatIsNoParameter_SaysSo) {
  WithGroups(1, PartitionPolicy::kGreedy, [](ShardedOptimizer& optimizer) {
    const auto error = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const StatusError& thrown) {
        EXPECT_EQ(thrown.status().code(), absl::StatusCode::kInvalidArgument);
        return std::string(thrown.status().message());
      }
      return std::string();
    };
    const at::Tensor detached = optimizer.param_groups()[2].params()[0].detach();
    EXPECT_THAT(error([&] { optimizer.owner_of(detached); }),
                AllOf(HasSubstr("Float [4, 1024]"), HasSubstr("none of the 5 parameters")));
    EXPECT_THAT(error([&] { optimizer.owner_of(at::Tensor()); }), HasSubstr("undefined"));
    EXPECT_THAT(error([&] { optimizer.owner_of(5); }), HasSubstr("no parameter 5"));
    EXPECT_THAT(error([&] { optimizer.owner_of(-1); }), HasSubstr("no parameter -1"));
  });
}

}  // namespace
}  // namespace optshard
