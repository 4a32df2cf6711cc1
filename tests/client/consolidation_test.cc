// The whole optimizer state of all ranks, and each rank's share of it.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/owner/state_shares.h"
#include "client/replica/parameter_owners.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "common/errors.h"
#include "tests/client/attached_options.h"
#include "tests/client/tensors.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using testing::ErrorOf;
using testing::ExpectAllOk;
using testing::Gradient;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RunRanks;

// A large one that is cut, one that is never stepped, a number, one without elements.
struct Model {
  std::vector<at::Tensor> parameters = {Parameter({3, 40000}, 1), Parameter({7}, 1),
                                        Parameter({}, 1), Parameter({0}, 1), Parameter({5}, 1)};

  void GiveGradients(int step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (i == 1) continue;
      parameters[i].mutable_grad() = at::arange(parameters[i].numel())
                                         .add(static_cast<int64_t>(i) + 7 * step)
                                         .remainder(11)
                                         .to(at::kFloat)
                                         .reshape(parameters[i].sizes());
    }
  }
};

ShardedOptimizerOptions Averaged(ShardedOptimizerOptions options, PartitionPolicy policy) {
  options.gradient_mode = GradientMode::kAveraged;
  options.policy = policy;
  options.buckets = {4096, 1024};
  return options;
}

// The whole state after two steps, on one rank.
StateDict Unsharded(const RuleOptions& rule) {
  StateDict dict;
  ExpectAllOk(RunRanks(1, [&](const ShardedOptimizerOptions& options) {
    Model model;
    ShardedOptimizer optimizer(model.parameters, rule, Averaged(options, PartitionPolicy::kGreedy));
    for (int step = 1; step <= 2; ++step) {
      model.GiveGradients(step);
      optimizer.step();
    }
    optimizer.consolidate_state_dict();
    dict = optimizer.state_dict();
    optimizer.Close();
  }));
  return dict;
}

RuleOptions NAdam() { return RuleOptions("nadam").Set("lr", 0.25); }

void ConsolidateAndCompare(ShardedOptimizerOptions options, PartitionPolicy policy,
                           const std::vector<std::string>& expected) {
  Model model;
  ShardedOptimizer optimizer(model.parameters, NAdam(), Averaged(options, policy));
  for (int step = 1; step <= 2; ++step) {
    model.GiveGradients(step);
    optimizer.step();
  }
  for (const int to : {1, -1}) {
    optimizer.consolidate_state_dict(to);
    const absl::Status error = ErrorOf([&] { optimizer.state_dict(); });
    if (to == 1 && options.rank != 1) {
      EXPECT_TRUE(absl::IsFailedPrecondition(error));
      EXPECT_THAT(std::string(error.message()),
                  HasSubstr("Optimizer state has not been consolidated on this rank. Please call "
                            "`consolidate_state_dict(to="));
    } else {
      EXPECT_EQ(DigestLines(optimizer.state_dict()), expected);
    }
  }
  // The state of one step, whatever comes after it.
  model.GiveGradients(3);
  optimizer.step();
  EXPECT_EQ(DigestLines(optimizer.state_dict()), expected);
  optimizer.Close();
}

TEST(ConsolidationTest, OnOneRankOrAll_UnderAnyPolicy_IsTheUnshardedState) {
  const std::vector<std::string> expected = DigestLines(Unsharded(NAdam()));
  for (const PartitionPolicy policy :
       {PartitionPolicy::kGreedy, PartitionPolicy::kBalanced, PartitionPolicy::kReplicated}) {
    for (const int world_size : {2, 3}) {
      SCOPED_TRACE(absl::StrCat(NameOf(policy), ", ", world_size, " ranks"));
      ExpectAllOk(RunRanks(world_size, [&](const ShardedOptimizerOptions& options) {
        ConsolidateAndCompare(options, policy, expected);
      }));
      ExpectAllOk(testing::RunServedRanks(world_size, [&](const ShardedOptimizerOptions& options) {
        ConsolidateAndCompare(options, policy, expected);
      }));
    }
  }
  EXPECT_EQ(testing::RunRanksOfOneHost(2,
                                       [&](const ShardedOptimizerOptions& options) {
                                         ConsolidateAndCompare(options, PartitionPolicy::kBalanced,
                                                               expected);
                                       })
                .one_pass_ranks,
            2);
}

TEST(ConsolidationTest, StateDictOfAllRanks_IsConsolidatedEverywhere) {
  const std::vector<std::string> expected = DigestLines(Unsharded(NAdam()));
  ExpectAllOk(RunRanks(2, [&](const ShardedOptimizerOptions& options) {
    Model model;
    ShardedOptimizer optimizer(model.parameters, NAdam(),
                               Averaged(options, PartitionPolicy::kGreedy));
    for (int step = 1; step <= 2; ++step) {
      model.GiveGradients(step);
      optimizer.step();
    }
    EXPECT_TRUE(absl::IsFailedPrecondition(ErrorOf([&] { optimizer.state_dict(false); })));
    EXPECT_EQ(DigestLines(optimizer.state_dict(true)), expected);
    EXPECT_EQ(DigestLines(optimizer.state_dict(false)), expected);
    optimizer.Close();
  }));
}

TEST(ConsolidationTest, AttachedToAServer_IsTheUnshardedState) {
  const std::vector<std::string> expected = DigestLines(Unsharded(NAdam()));
  testing::NodeRig rig(2);
  rig.OnEveryRank([&](Rank rank) {
    EXPECT_EQ(ErrorOf([&] {
                ConsolidateAndCompare(testing::AttachedTo(rig, rank), PartitionPolicy::kBalanced,
                                      expected);
              }),
              absl::OkStatus());
  });
}

TEST(ConsolidationTest, Layout_IsPyTorchs) {
  const StateDict dict = Unsharded(NAdam());
  std::vector<int64_t> with_state;
  for (const auto& [index, values] : dict.state) {
    with_state.push_back(index);
    std::vector<std::string> names;
    for (const auto& [name, value] : values) names.push_back(name);
    EXPECT_THAT(names, ElementsAre("exp_avg", "exp_avg_sq", "mu_product", "step"));
    EXPECT_EQ(values.at("step").toTensor().dim(), 0);
    EXPECT_EQ(values.at("step").toTensor().item<float>(), 2);
  }
  EXPECT_THAT(with_state, ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(dict.state.at(0).at("exp_avg").toTensor().sizes(), ElementsAre(3, 40000));
  ASSERT_EQ(dict.param_groups.size(), 1u);
  EXPECT_THAT(dict.param_groups[0].params, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(dict.param_groups[0].options.at("lr").toDouble(), 0.25);
  EXPECT_TRUE(dict.param_groups[0].options.at("betas").isTuple());
}

TEST(ConsolidationTest, LocalStateDicts_AreTheSharesOfTheWhole) {
  for (const PartitionPolicy policy : {PartitionPolicy::kGreedy, PartitionPolicy::kBalanced}) {
    SCOPED_TRACE(NameOf(policy));
    ExpectAllOk(RunRanks(3, [&](const ShardedOptimizerOptions& options) {
      Model model;
      ShardedOptimizerOptions named = Averaged(options, policy);
      named.parameter_names = {"a", "b", "c", "d", "e"};
      ShardedOptimizer optimizer(model.parameters, NAdam(), named);
      EXPECT_TRUE(optimizer.local_state_dict().state.empty());
      model.GiveGradients(1);
      optimizer.step();
      optimizer.consolidate_state_dict(-1);
      const StateDict whole = optimizer.state_dict();
      const StateDict local = optimizer.local_state_dict();
      EXPECT_EQ(DigestLines(local),
                DigestLines(optimizer.rank_local_state_dict(options.rank, whole)));
      const auto groups = optimizer.partition_parameters()[options.rank];
      EXPECT_EQ(local.param_groups[0].params.size(), groups[0].params().size());
      EXPECT_EQ(optimizer.named_state_dict().state.count("e"), 1u);
      EXPECT_EQ(whole.param_groups[0].options.count("param_names"), 1u);
      EXPECT_THAT(ErrorOf([&] { optimizer.rank_local_state_dict(3, whole); }).ToString(),
                  HasSubstr("the share of rank 3"));
      optimizer.Close();
    }));
  }
}

TEST(ConsolidationTest, WhatTheRanksDoNotDoAlike_IsAnErrorOnAll) {
  ExpectAllOk(RunRanks(3, [](const ShardedOptimizerOptions& options) {
    Model model;
    ShardedOptimizer optimizer(model.parameters, NAdam(),
                               Averaged(options, PartitionPolicy::kGreedy));
    absl::Status error =
        ErrorOf([&] { optimizer.consolidate_state_dict(options.rank == 2 ? 1 : 0); });
    EXPECT_TRUE(errors::IsRanksDisagree(error)) << error;
    EXPECT_THAT(errors::RanksOf(error), ElementsAre(2));
    error = ErrorOf([&] { optimizer.consolidate_state_dict(3); });
    EXPECT_THAT(error.ToString(), HasSubstr("rank 3, expected one from 0 to 2"));
    error = ErrorOf([&] {
      if (options.rank == 1) {
        optimizer.verify_replicas();
      } else {
        optimizer.consolidate_state_dict();
      }
    });
    EXPECT_THAT(error.ToString(), HasSubstr("rank 0 consolidates the optimizer state, while rank "
                                            "1 verifies the replicas"));
    optimizer.consolidate_state_dict();
    optimizer.Close();
  }));
}

}  // namespace
}  // namespace optshard
