// Param groups that are stepped by different rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <vector>

#include "client/sharded_optimizer.h"
#include "common/errors.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::First;
using testing::Gradient;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RunRanks;
using testing::Sgd;
using torch::optim::OptimizerParamGroup;

void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

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
