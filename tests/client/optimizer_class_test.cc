// Param groups that are stepped by an optimizer class as it is.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "client/owner/client_seams.h"
#include "client/sharded_optimizer.h"
#include "common/errors.h"
#include "common/gradient_mode.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"

namespace optshard {

// Gradient descent of somebody's own. Its options have nothing that all of LibTorch's have.
class Descent : public torch::optim::Optimizer {
 public:
  struct Options : torch::optim::OptimizerCloneableOptions<Options> {};

  // Before each step it calls `before` with the step's number.
  explicit Descent(
      std::vector<at::Tensor> parameters, std::function<void(int)> before = [](int) {})
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<Options>()),
        before_(std::move(before)) {}

  at::Tensor step(LossClosure = nullptr) override {
    before_(++steps_);
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : param_groups()[0].params()) {
      if (parameter.grad().defined()) parameter.sub_(parameter.grad());
    }
    return {};
  }

 private:
  const std::function<void(int)> before_;
  int steps_ = 0;
};

namespace {

using ::testing::AllOf;
using testing::BytesOf;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::First;
using testing::Gradient;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RunRanks;
using testing::RunRanksOfOneHost;
using testing::Sgd;
using torch::optim::Adam;
using torch::optim::OptimizerParamGroup;

TEST(OptimizerClassTest, Construct_RanksWithOtherValues_GivesTheClassRankZeros) {
  EXPECT_THAT(RunRanks(2,
                       [](const ShardedOptimizerOptions& options) {
                         const float value = options.rank == 0 ? 3 : 4;
                         const std::vector<at::Tensor> parameters = {Parameter({2}, value),
                                                                     Parameter({2}, value)};
                         const ShardedOptimizer optimizer(parameters,
                                                          RuleOptions::OfClass<Descent>(), options);
                         const auto& owned = optimizer.local_optimizer().param_groups()[0].params();
                         ASSERT_EQ(owned.size(), 1u);
                         EXPECT_EQ(First(owned[0]), 3);
                       }),
              Each(absl::OkStatus()));
}

TEST(OptimizerClassTest, Step_MoreRanksThanParameters_StepsTheClassOnItsOwnerOnly) {
  EXPECT_THAT(RunRanks(2,
                       [](const ShardedOptimizerOptions& options) {
                         const at::Tensor parameter = Parameter({1}, 5);
                         int steps = 0;
                         ShardedOptimizer optimizer(
                             {parameter},
                             RuleOptions::OfClass<Descent>([&steps](int step) { steps = step; }),
                             options);
                         for (int step = 0; step < 2; ++step) {
                           parameter.mutable_grad() = Gradient({1}, 1 + options.rank);
                           optimizer.step([&] { return Gradient({}, 7); });
                         }
                         EXPECT_EQ(First(parameter), 2);
                         EXPECT_EQ(First(parameter.grad()), 1 + options.rank);
                         EXPECT_EQ(steps, options.rank == 0 ? 2 : 0);
                       }),
              Each(absl::OkStatus()));
}

TEST(OptimizerClassTest, Step_AveragedGradients_AreTakenAsTheyAre) {
  EXPECT_THAT(RunRanks(2,
                       [](ShardedOptimizerOptions options) {
                         options.gradient_mode = GradientMode::kAveraged;
                         const at::Tensor parameter = Parameter({3}, 5);
                         ShardedOptimizer optimizer({parameter}, RuleOptions::OfClass<Descent>(),
                                                    options);
                         parameter.mutable_grad() = Gradient({3}, 2);
                         optimizer.step();
                         EXPECT_EQ(First(parameter), 3);
                       }),
              Each(absl::OkStatus()));
}

TEST(OptimizerClassTest, Step_ClosureGiven_ReturnsItsLoss) {
  EXPECT_THAT(RunRanks(2,
                       [](const ShardedOptimizerOptions& options) {
                         const at::Tensor parameter = Parameter({3}, 5);
                         ShardedOptimizer optimizer({parameter}, RuleOptions::OfClass<Descent>(),
                                                    options);
                         const at::Tensor loss = optimizer.step([&] {
                           at::Tensor sum = parameter.sum();
                           sum.backward();
                           return sum;
                         });
                         EXPECT_EQ(loss.item<double>(), 15);
                         EXPECT_EQ(First(parameter), 4);
                       }),
              Each(absl::OkStatus()));
}

// Two ranks, a parameter on each; on rank 1 the class throws in the second of three steps.
void StepUntilTheClassThrows(const ShardedOptimizerOptions& options,
                             std::vector<absl::Status>& second, std::vector<absl::Status>& third) {
  const std::vector<at::Tensor> parameters = {Parameter({2000}, 5), Parameter({2000}, 5)};
  ShardedOptimizer optimizer(parameters, RuleOptions::OfClass<Descent>([&](int step) {
                               if (options.rank == 1 && step == 2) {
                                 throw std::runtime_error("no such luck");
                               }
                             }),
                             options);
  const auto step = [&] {
    for (const at::Tensor& each : parameters) each.mutable_grad() = Gradient({2000}, 1);
    try {
      optimizer.step();
    } catch (const StatusError& error) {
      return error.status();
    }
    return absl::OkStatus();
  };
  EXPECT_TRUE(step().ok());
  second[options.rank] = step();
  third[options.rank] = step();
  for (const at::Tensor& each : parameters) EXPECT_EQ(BytesOf(each), BytesOf(Gradient({2000}, 4)));
}

void ExpectTornByRank1(const std::vector<absl::Status>& second,
                       const std::vector<absl::Status>& third) {
  for (const absl::Status& status : second) {
    EXPECT_TRUE(errors::IsTornStep(status)) << status;
    EXPECT_THAT(errors::RanksOf(status), ElementsAre(1));
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("step 2"), HasSubstr("those of step 1 on all ranks"),
                      HasSubstr("rank 1: param group 0: step() of optshard::Descent threw: no such "
                                "luck")));
  }
  EXPECT_EQ(third, second);
}

TEST(OptimizerClassTest, Step_TheClassThrowsOnARank_NoReplicaChangesAndAllAreToldWhere) {
  for (const bool in_one_pass : {false, true}) {
    std::vector<absl::Status> second(2);
    std::vector<absl::Status> third(2);
    const auto body = [&](const ShardedOptimizerOptions& options) {
      StepUntilTheClassThrows(options, second, third);
    };
    EXPECT_THAT(in_one_pass ? RunRanksOfOneHost(2, body).thrown : RunRanks(2, body),
                Each(absl::OkStatus()));
    ExpectTornByRank1(second, third);
  }
}

TEST(OptimizerClassTest, SetLr_ThroughTheGroupsOptions_ReachesTheClass) {
  EXPECT_THAT(RunRanks(2,
                       [](const ShardedOptimizerOptions& options) {
                         const at::Tensor parameter = Parameter({1}, 5);
                         ShardedOptimizer optimizer(
                             {parameter}, RuleOptions::OfClass<torch::optim::SGD>(1.0), options);
                         auto& group = optimizer.param_groups()[0].options();
                         EXPECT_EQ(group.get_lr(), 1);
                         group.set_lr(0.5);
                         parameter.mutable_grad() = Gradient({1}, 1);
                         optimizer.step();
                         EXPECT_EQ(First(parameter), 4.5);
                         const auto& own = optimizer.local_optimizer().param_groups()[0].options();
                         EXPECT_EQ(own.get_lr(), 0.5);
                       }),
              Each(absl::OkStatus()));
}

TEST(OptimizerClassTest, SetLr_OfAClassWithTwoGroups_SetsBoth) {
  const OptimizerFactory two_groups = [](const std::vector<at::Tensor>& parameters) {
    std::vector<OptimizerParamGroup> groups;
    for (const at::Tensor& parameter : parameters) groups.emplace_back(std::vector{parameter});
    return std::make_unique<torch::optim::SGD>(std::move(groups), torch::optim::SGDOptions(1.0));
  };
  EXPECT_THAT(
      RunRanks(1,
               [&](const ShardedOptimizerOptions& options) {
                 const std::vector<at::Tensor> parameters = {Parameter({1}, 5), Parameter({1}, 5)};
                 ShardedOptimizer optimizer(parameters, RuleOptions("two", two_groups), options);
                 optimizer.param_groups()[0].options().set_lr(0.5);
                 for (const at::Tensor& parameter : parameters) {
                   parameter.mutable_grad() = Gradient({1}, 1);
                 }
                 optimizer.step();
                 EXPECT_EQ(First(parameters[0]), 4.5);
                 EXPECT_EQ(First(parameters[1]), 4.5);
               }),
      Each(absl::OkStatus()));
}

TEST(OptimizerClassTest, SetLr_OnOneRankOnly_IsNamedAndCanBeCorrected) {
  EXPECT_THAT(RunRanks(2,
                       [](const ShardedOptimizerOptions& options) {
                         const at::Tensor parameter = Parameter({1}, 5);
                         ShardedOptimizer optimizer(
                             {parameter}, RuleOptions::OfClass<torch::optim::SGD>(1.0), options);
                         auto& own = optimizer.local_optimizer().param_groups()[0].options();
                         if (options.rank == 1) own.set_lr(0.25);
                         parameter.mutable_grad() = Gradient({1}, 1);
                         try {
                           optimizer.step();
                           ADD_FAILURE() << "stepped with two learning rates";
                         } catch (const StatusError& error) {
                           EXPECT_TRUE(errors::IsRanksDisagree(error.status())) << error.status();
                           EXPECT_THAT(error.what(),
                                       HasSubstr("lr is 1 on rank 0 but 0.25 on rank 1"));
                         }
                         own.set_lr(1);
                         optimizer.step();
                         EXPECT_EQ(First(parameter), 4);
                       }),
              Each(absl::OkStatus()));
}

TEST(OptimizerClassTest, Step_OptionsOfAnotherObjectSet_IsRefusedUntilTheyAreUndone) {
  EXPECT_THAT(RunRanks(1,
                       [](const ShardedOptimizerOptions& options) {
                         const at::Tensor parameter = Parameter({1}, 5);
                         ShardedOptimizer optimizer(
                             {parameter}, RuleOptions::OfClass<torch::optim::SGD>(1.0), options);
                         parameter.mutable_grad() = Gradient({1}, 1);
                         OptimizerParamGroup& group = optimizer.param_groups()[0];
                         const auto own = group.options().clone();
                         group.set_options(std::make_unique<RuleOptions>(
                             RuleOptions::OfClass<torch::optim::SGD>(0.5)));
                         try {
                           optimizer.step();
                           ADD_FAILURE() << "stepped with options that nothing reads";
                         } catch (const StatusError& error) {
                           EXPECT_THAT(error.what(), HasSubstr("options of local_optimizer(0)"));
                         }
                         group.set_options(own->clone());
                         optimizer.step();
                         EXPECT_EQ(First(parameter), 4);
                       }),
              Each(absl::OkStatus()));
}

TEST(OptimizerClassTest, Inspect_GroupOfAClass_HasItsNameAndNoSlots) {
  EXPECT_THAT(RunRanks(1,
                       [](const ShardedOptimizerOptions& options) {
                         const at::Tensor parameter = Parameter({1}, 5);
                         ShardedOptimizer optimizer({parameter}, RuleOptions::OfClass<Adam>(0.25),
                                                    options);
                         parameter.mutable_grad() = Gradient({1}, 1);
                         optimizer.step();
                         const ShardViewRegistry::Use view =
                             ValueOrThrow(ScopedClientSeams::Current()->views->Find({"", 0}));
                         const ShardDescription description = view->Describe();
                         ASSERT_EQ(description.groups.size(), 1u);
                         EXPECT_EQ(description.groups[0].name, "torch::optim::Adam");
                         EXPECT_EQ(description.groups[0].hyperparameters.Number("lr"), 0.25);
                         EXPECT_EQ(description.state_bytes, 0);
                         try {
                           optimizer.state(parameter);
                           ADD_FAILURE() << "gave state of a class";
                         } catch (const StatusError& error) {
                           EXPECT_TRUE(absl::IsUnimplemented(error.status())) << error.status();
                           EXPECT_THAT(error.what(), HasSubstr("local_optimizer(0).state()"));
                         }
                       }),
              Each(absl::OkStatus()));
}

TEST(OptimizerClassTest, Construct_RanksWithOtherClasses_NamesTheGroupAndBoth) {
  for (const absl::Status& status : RunRanks(2, [](const ShardedOptimizerOptions& options) {
         std::vector<OptimizerParamGroup> groups;
         groups.emplace_back(std::vector<at::Tensor>{Parameter({1}, 1)});
         groups.emplace_back(
             std::vector<at::Tensor>{Parameter({1}, 1)},
             std::make_unique<RuleOptions>(options.rank == 0 ? RuleOptions::OfClass<Adam>()
                                                             : RuleOptions::OfClass<Descent>()));
         ShardedOptimizer(groups, Sgd(1), options);
       })) {
    EXPECT_TRUE(errors::IsRanksDisagree(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("param group 1"), HasSubstr("\"torch::optim::Adam\""),
                      HasSubstr("\"optshard::Descent\"")));
  }
}

// What one rank's construction with such options throws.
absl::Status Refusal(
    const RuleOptions& rule,
    const std::function<void(ShardedOptimizerOptions&)>& change = [](auto&) {}) {
  return RunRanks(1, [&](ShardedOptimizerOptions options) {
    change(options);
    ShardedOptimizer(std::vector<at::Tensor>{Parameter({1}, 1).to(at::kBFloat16).detach()}, rule,
                     options);
  })[0];
}

TEST(OptimizerClassTest, Construct_WhatDoesNotGoWithAClass_IsRefusedWithTheWayOut) {
  const RuleOptions descent = RuleOptions::OfClass<Descent>();
  const OptimizerFactory lbfgs = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::LBFGS>(std::move(parameters));
  };
  const OptimizerFactory fails = [](auto) -> std::unique_ptr<torch::optim::Optimizer> {
    throw std::runtime_error("no such luck");
  };
  const struct {
    absl::Status status;
    const char* says;
    const char* also;
  } cases[] = {
      {Refusal(descent, [](auto& options) { options.attach = "unix:/nowhere"; }),
       "param group 0 is stepped by the optimizer class \"optshard::Descent\"",
       "set attach to \"embedded\""},
      {Refusal(descent, [](auto& options) { options.policy = PartitionPolicy::kBalanced; }),
       "\"optshard::Descent\" needs whole parameters", "use \"greedy\""},
      {Refusal(descent, [](auto& options) { options.master_weights = true; }),
       "\"optshard::Descent\" keeps its state itself, so that master_weights cannot be had",
       "leave that option out"},
      {Refusal(descent, [](auto& options) { options.state_dtype = "int8_dynamic"; }),
       "state_dtype \"int8_dynamic\" cannot be had", "leave that option out"},
      {Refusal(descent, [](auto& options) { options.publish_dtype = "bfloat16"; }),
       "publish_dtype \"bfloat16\" cannot be had", "leave that option out"},
      {Refusal(RuleOptions("hidden", lbfgs)), "param group 0: LBFGS cannot be sharded",
       "give another rule"},
      {Refusal(RuleOptions("mine", fails)), "the factory of \"mine\" threw: no such luck",
       "param group 0"},
      {Refusal(RuleOptions("mine", [](auto) { return nullptr; })),
       "the factory of \"mine\" returned no optimizer", "param group 0"},
  };
  for (const auto& each : cases) {
    EXPECT_TRUE(absl::IsInvalidArgument(each.status)) << each.status;
    EXPECT_THAT(std::string(each.status.message()),
                AllOf(HasSubstr(each.says), HasSubstr(each.also)));
  }
}

}  // namespace
}  // namespace optshard
