// State dicts that are loaded: what is taken of them, and what is refused.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "common/errors.h"
#include "tests/client/attached_options.h"
#include "tests/client/tensors.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/recorded_job.h"
#include "tests/testing/rule_table.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::ErrorOf;
using testing::ExpectAllOk;
using testing::Gradient;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RecordedJob;
using testing::RunRanks;

// --- What cannot be loaded.

// Two groups, one parameter of which is cut between two ranks.
struct Trained {
  std::vector<at::Tensor> parameters = {Parameter({4096}, 1), Parameter({3}, 1), Parameter({2}, 1)};

  std::vector<torch::optim::OptimizerParamGroup> groups() const {
    std::vector<torch::optim::OptimizerParamGroup> result;
    result.emplace_back(std::vector<at::Tensor>{parameters[0], parameters[1]});
    result.emplace_back(std::vector<at::Tensor>{parameters[2]});
    return result;
  }
  void Step(ShardedOptimizer& optimizer) const {
    for (const at::Tensor& each : parameters) each.mutable_grad() = at::full(each.sizes(), 0.5);
    optimizer.step();
  }
};

RuleOptions Adam() { return RuleOptions("adam").Set("lr", 0.25); }

ShardedOptimizerOptions Balanced(ShardedOptimizerOptions options) {
  options.policy = PartitionPolicy::kBalanced;
  options.parameter_names = {"a", "b", "c"};
  return options;
}

TEST(LoadStateDictTest, WhatDoesNotFit_SaysWhatOnAllRanksAndChangesNothing) {
  struct Case {
    std::function<void(StateDict&)> spoil;
    std::vector<std::string> said;
  };
  const std::vector<Case> cases = {
      {[](StateDict& dict) { dict.param_groups.pop_back(); },
       {"loaded state dict has a different number of parameter groups"}},
      {[](StateDict& dict) { dict.param_groups[0].params.pop_back(); },
       {"loaded state dict contains a parameter group that doesn't match the size of optimizer's "
        "group"}},
      {[](StateDict& dict) { dict.param_groups[1].params[0] = 0; }, {"has parameter 0 twice"}},
      {[](StateDict& dict) { dict.state[9] = dict.state[0]; }, {"state of parameter 9"}},
      {[](StateDict& dict) { dict.state[0].erase("exp_avg"); },
       {"parameter 0 \"a\" lacks \"exp_avg\"", "exp_avg, exp_avg_sq, step"}},
      {[](StateDict& dict) { dict.state[0].erase("step"); }, {"lacks \"step\""}},
      {[](StateDict& dict) { dict.state[1]["sum"] = at::zeros({3}); },
       {"parameter 1 \"b\" has \"sum\""}},
      {[](StateDict& dict) { dict.state[1]["exp_avg"] = at::zeros({4}); },
       {"\"exp_avg\" of parameter 1", "has the shape [4], expected [3]"}},
      {[](StateDict& dict) { dict.state[1]["exp_avg"] = at::zeros({3}, at::kLong); },
       {"is Strided Long, expected a dense tensor of floating-point numbers"}},
      {[](StateDict& dict) { dict.state[1]["exp_avg"] = 3; }, {"is Int, expected a tensor"}},
      {[](StateDict& dict) { dict.state[1]["step"] = 0.5; }, {"\"step\" of", "is 0.5"}},
      {[](StateDict& dict) { dict.state[1]["step"] = "many"; }, {"expected one real number"}},
      {[](StateDict& dict) { dict.param_groups[1].options["lr"] = -1.0; },
       {"param group 1", "\"lr\"", "-1"}},
      {[](StateDict& dict) { dict.param_groups[1].options["momentum"] = 0.5; },
       {"param group 1", "\"momentum\""}},
      {[](StateDict& dict) { dict.param_groups[1].options["lr"] = c10::IValue(); },
       {"\"lr\" of the state dict is None"}},
      {[](StateDict& dict) { dict.param_groups[1].options["lr"] = "much"; },
       {"\"lr\" of the state dict is String"}},
      {[](StateDict& dict) { dict.param_groups[1].options["decoupled_weight_decay"] = true; },
       {"decoupled_weight_decay"}},
      {[](StateDict& dict) { dict.param_groups[1].options["amsgrad"] = true; }, {"amsgrad"}},
  };
  ExpectAllOk(RunRanks(2, [&](const ShardedOptimizerOptions& options) {
    const Trained trained;
    ShardedOptimizer optimizer(trained.groups(), Adam(), Balanced(options));
    trained.Step(optimizer);
    optimizer.consolidate_state_dict(-1);
    const StateDict good = optimizer.state_dict();
    const std::vector<std::string> before = DigestLines(good);
    for (const Case& each : cases) {
      SCOPED_TRACE(each.said[0]);
      StateDict bad = good;
      each.spoil(bad);
      for (const int from : {-1, 1}) {
        const absl::Status error = ErrorOf([&] { optimizer.load_state_dict(bad, from); });
        EXPECT_TRUE(absl::IsInvalidArgument(error)) << error;
        for (const std::string& said : each.said) EXPECT_THAT(error.ToString(), HasSubstr(said));
        EXPECT_THAT(error.ToString(), HasSubstr(from == 1 ? "rank 1: " : "rank 0: "));
      }
    }
    optimizer.consolidate_state_dict(-1);
    EXPECT_EQ(DigestLines(optimizer.state_dict()), before);
    trained.Step(optimizer);
    optimizer.Close();
  }));
}

TEST(LoadStateDictTest, DictsThatDiffer_NameTheFirstDifferenceAndTheRanks) {
  ExpectAllOk(RunRanks(3, [](const ShardedOptimizerOptions& options) {
    const Trained trained;
    ShardedOptimizer optimizer(trained.groups(), Adam(), Balanced(options));
    trained.Step(optimizer);
    optimizer.consolidate_state_dict(-1);
    StateDict dict = optimizer.state_dict();
    const std::vector<std::string> before = DigestLines(dict);
    if (options.rank > 0) dict.param_groups[0].options["lr"] = 0.5;
    if (options.rank == 2) dict.state[1]["exp_avg_sq"] = at::full({3}, 9.0F);
    absl::Status error = ErrorOf([&] { optimizer.load_state_dict(dict); });
    EXPECT_TRUE(errors::IsRanksDisagree(error)) << error;
    EXPECT_THAT(errors::RanksOf(error), ElementsAre(1, 2));
    EXPECT_THAT(error.ToString(),
                HasSubstr("state[1][\"exp_avg_sq\"] is not the same on rank 0 and rank 2"));
    if (options.rank == 2) dict.state.erase(1);
    error = ErrorOf([&] { optimizer.load_state_dict(dict); });
    EXPECT_THAT(error.ToString(), HasSubstr("where rank 0 has state[1][\"exp_avg\"], rank 2 has "
                                            "state[2][\"exp_avg\"]"));
    error = ErrorOf([&] { optimizer.load_state_dict(dict, options.rank); });
    EXPECT_THAT(error.ToString(), HasSubstr("the rank whose state dict is loaded"));
    optimizer.consolidate_state_dict(-1);
    EXPECT_EQ(DigestLines(optimizer.state_dict()), before);
    optimizer.Close();
  }));
}

// --- What is loaded.

TEST(LoadStateDictTest, Options_GoIntoParamGroups_AndNothingOfTheCallersChanges) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const Trained trained;
    ShardedOptimizer optimizer(trained.groups(), Adam(), Balanced(options));
    trained.Step(optimizer);
    optimizer.consolidate_state_dict(-1);
    StateDict dict = optimizer.state_dict();
    dict.param_groups[1].options["lr"] = 0.5;
    dict.param_groups[1].options["foreach"] = c10::IValue();
    dict.param_groups[1].options["initial_lr"] = 0.125;
    const at::Tensor given = dict.state[0]["exp_avg"].toTensor();
    const std::vector<std::string> before = DigestLines(dict);
    auto& group = optimizer.param_groups()[1].options();
    optimizer.load_state_dict(dict);
    EXPECT_EQ(group.get_lr(), 0.5);
    EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.25);
    EXPECT_EQ(DigestLines(dict), before);
    given.fill_(77);
    trained.Step(optimizer);
    EXPECT_EQ(testing::First(trained.parameters[1]), testing::First(trained.parameters[0]));
    optimizer.Close();
  }));
}

// Of another type, of any numbers, without what PyTorch's optimizers leave out.
TEST(LoadStateDictTest, StateOfOtherTypesAndNumbers_IsTaken) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const Trained trained;
    ShardedOptimizer optimizer(trained.groups(), Adam(), Balanced(options));
    trained.Step(optimizer);
    StateDict dict;
    dict.param_groups.resize(2);
    dict.param_groups[0].params = {17, 4};
    dict.param_groups[1].params = {100};
    dict.state[4] = {{"exp_avg", at::full({3}, 0.5, at::TensorOptions(at::kDouble))},
                     {"exp_avg_sq", at::full({3}, 0.25, at::TensorOptions(at::kBFloat16))},
                     {"max_exp_avg_sq", c10::IValue()},
                     {"step", 5}};
    dict.state[100] = {};
    optimizer.load_state_dict(dict);
    optimizer.consolidate_state_dict(-1);
    const StateDict loaded = optimizer.state_dict();
    ASSERT_EQ(loaded.state.size(), 1u) << "the others begin anew";
    const StateValues& values = loaded.state.at(1);
    EXPECT_TRUE(at::equal(values.at("exp_avg").toTensor(), at::full({3}, 0.5F)));
    EXPECT_TRUE(at::equal(values.at("exp_avg_sq").toTensor(), at::full({3}, 0.25F)));
    EXPECT_EQ(values.at("step").toTensor().item<float>(), 5);
    optimizer.Close();
  }));
}

TEST(LoadStateDictTest, ByName_ParametersInAnotherOrder_AreFound) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const Trained trained;
    ShardedOptimizer optimizer(trained.groups(), Adam(), Balanced(options));
    trained.Step(optimizer);
    optimizer.consolidate_state_dict(-1);
    NamedStateDict named = optimizer.named_state_dict();
    const std::vector<std::string> before = DigestLines(optimizer.state_dict());
    std::swap(named.param_groups[0].params[0], named.param_groups[0].params[1]);
    trained.Step(optimizer);
    optimizer.load_state_dict(named, 1);
    optimizer.consolidate_state_dict(-1);
    EXPECT_EQ(DigestLines(optimizer.state_dict()), before);
    named.param_groups[0].params[0] = "other";
    EXPECT_THAT(ErrorOf([&] { optimizer.load_state_dict(named); }).ToString(),
                HasSubstr("has a parameter \"other\""));
    optimizer.Close();
  }));
}

TEST(LoadStateDictTest, WithoutMasters_TheyAreTheParameters) {
  for (const int bits : {32, 24}) {
    ExpectAllOk(RunRanks(2, [&](ShardedOptimizerOptions options) {
      options.master_weights = true;
      options.master_weight_bits = bits;
      const at::Tensor a =
          at::full({3}, 1, at::TensorOptions(at::kBFloat16)).set_requires_grad(true);
      ShardedOptimizer optimizer({a}, RuleOptions("sgd").Set("lr", 0x1p-10), options);
      a.mutable_grad() = at::full({3}, 1, at::TensorOptions(at::kBFloat16));
      optimizer.step();
      optimizer.consolidate_state_dict(-1);
      StateDict dict = optimizer.state_dict();
      EXPECT_EQ(dict.state[0].erase(bits == 32 ? "master" : "master_correction"), 1u);
      optimizer.load_state_dict(dict);
      optimizer.consolidate_state_dict(-1);
      const StateValues loaded = optimizer.state_dict().state.at(0);
      if (bits == 32) {
        EXPECT_TRUE(at::equal(loaded.at("master").toTensor(), at::full({3}, 1.0F)));
      } else {
        EXPECT_EQ(loaded.at("master_correction").toTensor().abs().sum().item<int>(), 0);
      }
      optimizer.Close();
    }));
  }
}

TEST(LoadStateDictTest, OptimizerClasses_KeepTheirStateToThemselves) {
  ExpectAllOk(RunRanks(1, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({3}, 1);
    ShardedOptimizer optimizer(
        {a},
        RuleOptions("mine",
                    [](std::vector<at::Tensor> parameters) {
                      class MyOptions : public torch::optim::OptimizerCloneableOptions<MyOptions> {
                      };
                      class Mine : public torch::optim::Optimizer {
                       public:
                        using Optimizer::Optimizer;
                        at::Tensor step(LossClosure) override { return {}; }
                      };
                      return std::make_unique<Mine>(std::move(parameters),
                                                    std::make_unique<MyOptions>());
                    }),
        options);
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { optimizer.consolidate_state_dict(); }, [&] { optimizer.local_state_dict(); },
             [&] { optimizer.load_state_dict(StateDict()); }}) {
      EXPECT_TRUE(absl::IsUnimplemented(ErrorOf(call)));
    }
    optimizer.Close();
  }));
}

}  // namespace
}  // namespace optshard
