// Param groups that are stepped by different rules.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/matmul.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <vector>

#include "client/sharded_optimizer.h"
#include "common/errors.h"
#include "common/isolated_object.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using testing::ExpectAllOk;
using testing::First;
using testing::Gradient;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RunRanks;
using testing::Sgd;
using torch::optim::OptimizerParamGroup;

TEST(GroupRulesTest, Step_GroupOfAnotherRule_HasThatRulesDefaults) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 1);
    const at::Tensor b = Parameter({1}, 1);
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{a});
    groups.emplace_back(std::vector<at::Tensor>{b}, std::make_unique<RuleOptions>("lion"));
    ShardedOptimizer optimizer(groups, Sgd(0.25).Set("maximize", true), options);
    for (const at::Tensor& each : {a, b}) each.mutable_grad() = Gradient({1}, 1);
    optimizer.step();
    EXPECT_EQ(First(a), 1.25);
    EXPECT_EQ(First(b), 1 - 1e-4F);  // against the gradient
    const auto& lion = static_cast<const RuleOptions&>(optimizer.param_groups()[1].options());
    EXPECT_EQ(lion.rule(), "lion");
    EXPECT_EQ(lion.values(), RuleOptions("lion").Complete().values());
  }));
}

TEST(GroupRulesTest, Step_OptionsOfAnotherRuleSetOnAGroup_CanBeCorrectedAndCalledAgain) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 1);
    const at::Tensor b = Parameter({1}, 1);
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{a}, std::make_unique<RuleOptions>("adam"));
    groups.emplace_back(std::vector<at::Tensor>{b});
    ShardedOptimizer optimizer(groups, Sgd(0.25), options);
    for (const at::Tensor& each : {a, b}) each.mutable_grad() = Gradient({1}, 1);
    optimizer.param_groups()[1].set_options(std::make_unique<torch::optim::AdamOptions>(0.5));
    absl::Status status;
    try {
      optimizer.step();
    } catch (const StatusError& error) {
      status = error.status();
    }
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("param group 1"), HasSubstr("\"adam\""), HasSubstr("\"sgd\"")));
    EXPECT_EQ(First(a), 1);
    optimizer.param_groups()[1].set_options(std::make_unique<torch::optim::SGDOptions>(0.5));
    optimizer.step();
    EXPECT_EQ(First(b), 0.5);
    EXPECT_EQ(optimizer.last_step().step, 1u);
  }));
}

at::Tensor Ramp(const std::vector<int64_t>& shape) {
  return at::linspace(-1, 1, at::empty(shape).numel()).reshape(shape);
}

// As Muon's users train: matrices by it, everything else by AdamW. Equal bits on any number of
// ranks; the owners of the matrices are balanced by the cost of theirs.
TEST(GroupRulesTest, Step_MatricesByMuonAndOthersByAdamW_EqualBitsOnAnyNumberOfRanks) {
  if (!ObjectsAreIsolated()) GTEST_SKIP() << "oneDNN does not go beside LibTorch here";
  const auto train = [](int world_size) {
    std::vector<std::vector<at::Tensor>> parameters(world_size);
    ExpectAllOk(RunRanks(world_size, [&](const ShardedOptimizerOptions& options) {
      std::vector<at::Tensor>& own = parameters[options.rank];
      for (const std::vector<int64_t>& shape :
           {std::vector<int64_t>{24, 40}, {40, 24}, {7, 300}, {24}, {40}}) {
        own.push_back(Ramp(shape).set_requires_grad(true));
      }
      std::vector<OptimizerParamGroup> groups;
      groups.emplace_back(std::vector<at::Tensor>(own.begin(), own.begin() + 3),
                          std::make_unique<RuleOptions>(
                              RuleOptions("muon").Set("adjust_lr_fn", "match_rms_adamw")));
      groups.emplace_back(std::vector<at::Tensor>(own.begin() + 3, own.end()));
      ShardedOptimizer optimizer(groups, RuleOptions("adamw").Set("lr", 0.01), options);
      for (int step = 0; step < 3; ++step) {
        // Of ten bits, so that the average of equal ones is exact.
        for (const at::Tensor& each : own) {
          each.mutable_grad() = ((each.detach() + step).sin() * 1024).round() / 1024;
        }
        optimizer.step();
      }
      if (world_size == 2) {
        // By elements the last matrix would have an owner of its own.
        EXPECT_EQ(optimizer.owner_of(own[0])[0].rank, 0);
        EXPECT_EQ(optimizer.owner_of(own[1])[0].rank, 1);
        EXPECT_EQ(optimizer.owner_of(own[2])[0].rank, 0);
      }
    }));
    for (const std::vector<at::Tensor>& others : parameters) {
      for (size_t i = 0; i < others.size(); ++i) {
        EXPECT_TRUE(at::equal(others[i], parameters[0][i])) << i;
      }
    }
    return parameters[0];
  };
  // LibTorch has a oneDNN of its own, which goes on as before.
  const at::Tensor half = Ramp({64, 64}).to(at::kBFloat16);
  const at::Tensor product = at::matmul(half, half);
  const std::vector<at::Tensor> alone = train(1);
  for (const int world_size : {2, 3}) {
    const std::vector<at::Tensor> sharded = train(world_size);
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_TRUE(at::equal(sharded[i], alone[i])) << world_size << " ranks, parameter " << i;
    }
  }
  EXPECT_TRUE(at::equal(at::matmul(half, half), product));
  EXPECT_FALSE(at::equal(alone[0], Ramp({24, 40})));
}

TEST(GroupRulesTest, Construct_BiasInAGroupOfMuon_NamesItAndTheWayOut) {
  const std::vector<absl::Status> statuses =
      RunRanks(2, [](const ShardedOptimizerOptions& options) {
        ShardedOptimizer({Parameter({4}, 1), Parameter({4, 4}, 1)}, RuleOptions("muon"), options);
      });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("parameter \"parameter_0\" of the shape [4]"),
                      HasSubstr("takes matrices"), HasSubstr("such as \"adamw\"")));
  }
}

TEST(GroupRulesTest, Construct_RanksWithOtherRulesInAGroup_ShowsTheGroupOnEveryRank) {
  const std::vector<absl::Status> statuses =
      RunRanks(2, [](const ShardedOptimizerOptions& options) {
        std::vector<OptimizerParamGroup> groups;
        groups.emplace_back(std::vector<at::Tensor>{Parameter({1}, 1)});
        groups.emplace_back(std::vector<at::Tensor>{Parameter({1}, 1)},
                            std::make_unique<RuleOptions>(options.rank == 0 ? "adam" : "lion"));
        ShardedOptimizer(groups, Sgd(1), options);
      });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(errors::IsRanksDisagree(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("param group 1"), HasSubstr("\"adam\""), HasSubstr("\"lion\"")));
  }
}

}  // namespace
}  // namespace optshard
