// Param groups: their options, LR schedulers on them, and changes of them.
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#include <torch/optim/schedulers/step_lr.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/sharded_optimizer.h"
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

TEST(ParamGroupsTest, Step_LrSetOnAGroup_ReachesTheOwner) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 1);
    ShardedOptimizer optimizer({a}, Sgd(1), options);
    optimizer.param_groups()[0].options().set_lr(0.25);
    a.mutable_grad() = Gradient({1}, 1);
    optimizer.step();
    EXPECT_EQ(First(a), 0.75);
  }));
}

TEST(ParamGroupsTest, Step_TorchsSchedulers_DriveIt) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 4);
    ShardedOptimizer optimizer({a}, Sgd(1), options);
    a.mutable_grad() = Gradient({1}, 1);
    torch::optim::StepLR every_step(optimizer, /*step_size=*/1, /*gamma=*/0.5);
    torch::optim::ReduceLROnPlateauScheduler plateau(
        optimizer, torch::optim::ReduceLROnPlateauScheduler::min, /*factor=*/0.5, /*patience=*/0);
    optimizer.step();  // 4 - 1
    every_step.step();
    every_step.step();  // torch's begins with the second
    optimizer.step();   // 3 - 0.5
    plateau.step(1.0f);
    plateau.step(2.0f);  // worse: halved
    optimizer.step();    // 2.5 - 0.25
    EXPECT_EQ(First(a), 2.25);
  }));
}

TEST(ParamGroupsTest, Step_GroupsWithOptionsOfTheirOwn_OverrideTheDefaults) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 1);
    const at::Tensor b = Parameter({1}, 1);
    const at::Tensor c = Parameter({1}, 1);
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{a});
    groups.emplace_back(std::vector<at::Tensor>{b},
                        std::make_unique<RuleOptions>(RuleOptions("sgd").Set("lr", 0.5)));
    groups.emplace_back(std::vector<at::Tensor>{c},
                        std::make_unique<RuleOptions>(RuleOptions("sgd").Set("maximize", true)));
    ShardedOptimizer optimizer(groups, Sgd(0.25), options);
    for (const at::Tensor& each : {a, b, c}) each.mutable_grad() = Gradient({1}, 1);
    optimizer.step();
    EXPECT_EQ(First(a), 0.75);
    EXPECT_EQ(First(b), 0.5);
    EXPECT_EQ(First(c), 1.25);
    EXPECT_EQ(optimizer.param_groups()[2].options().get_lr(), 0.25);
  }));
}

TEST(ParamGroupsTest, Construct_OptionsNotSet_AreInParamGroupsWithTheRulesDefaults) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    ShardedOptimizer optimizer({Parameter({1}, 1)}, RuleOptions("adam").Set("lr", 0.5), options);
    const auto& group = static_cast<RuleOptions&>(optimizer.param_groups()[0].options());
    EXPECT_EQ(group.values(), RuleOptions("adam").Set("lr", 0.5).Complete().values());
  }));
}

TEST(ParamGroupsTest, Construct_ParameterTwiceInAGroup_IsCountedAndSteppedOnce) {
  ExpectAllOk(RunRanks(2, [](ShardedOptimizerOptions options) {
    options.parameter_names = {"in.weight", "bias", "out.weight"};
    const at::Tensor tied = Parameter({2}, 1);
    const at::Tensor bias = Parameter({1}, 1);
    const std::vector<OptimizerParamGroup> groups = {
        OptimizerParamGroup(std::vector<at::Tensor>{}),
        OptimizerParamGroup(std::vector<at::Tensor>{tied, bias, tied})};
    ShardedOptimizer optimizer(groups, Sgd(0.25), options);
    ASSERT_EQ(optimizer.param_groups().size(), 2u);
    EXPECT_EQ(optimizer.param_groups()[1].params().size(), 2u);
    for (int step = 1; step <= 2; ++step) {
      optimizer.zero_grad();
      tied.sum().add(bias.sum()).backward();
      optimizer.step();
      EXPECT_EQ(First(tied), 1 - 0.25 * step);
      EXPECT_EQ(First(bias), 1 - 0.25 * step);
    }
  }));
}

TEST(ParamGroupsTest, Step_ParameterThatStandsBeforeTheOthers_IsNoticedFirstAndCanBeUndone) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 1);
    ShardedOptimizer optimizer({a}, Sgd(0.25), options);
    a.mutable_grad() = Gradient({1}, 1);
    if (options.rank == 1) {
      std::vector<at::Tensor>& parameters = optimizer.param_groups()[0].params();
      parameters.insert(parameters.begin(), Parameter({1}, 1));
      bool called = false;
      const auto closure = [&called] {
        called = true;
        return at::zeros({});
      };
      for (const auto& call : {std::function<void()>([&] { optimizer.step(closure); }),
                               std::function<void()>([&] { optimizer.refresh_parameters(); })}) {
        try {
          call();
          ADD_FAILURE() << "a parameter was added without a word";
        } catch (const StatusError& error) {
          EXPECT_EQ(error.status().code(), absl::StatusCode::kUnimplemented);
          EXPECT_THAT(error.what(),
                      AllOf(HasSubstr("group 0 of param_groups() has other parameters"),
                            HasSubstr("Undo the change")));
        }
      }
      EXPECT_FALSE(called);
      parameters.erase(parameters.begin());
    }
    optimizer.step();
    EXPECT_EQ(First(a), 0.75);
  }));
}

}  // namespace
}  // namespace optshard
