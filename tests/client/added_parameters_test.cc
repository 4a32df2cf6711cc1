// Parameters that are added to param groups between steps.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "tests/client/growth_cases.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using testing::ErrorOf;
using testing::ExpectAllOk;
using testing::First;
using testing::GiveGradients;
using testing::GrowthCase;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RunGrowthCase;
using testing::RunRanks;
using testing::RunRanksOfOneHost;
using testing::Sgd;
using torch::optim::OptimizerParamGroup;
using Tensors = std::vector<at::Tensor>;

const std::vector<std::vector<int64_t>> kShapes = {{5, 3},    {2049}, {3, 1500}, {7},
                                                   {1024, 3}, {1},    {70, 11}};

Tensors Parameters() { return testing::Parameters(kShapes); }

const RuleOptions& Adam() {
  static const RuleOptions adam = RuleOptions("adam").Set("lr", 0.25);
  return adam;
}
RuleOptions OtherAdam() { return RuleOptions("adam").Set("lr", 0.5).Set("amsgrad", true); }

// Of two groups, {0, 1} and {2}. After step 1, group 0 gets {3}, and after step 3 group 1 gets
// {4, 5}, and group 0 {6}.
std::vector<OptimizerParamGroup> FirstGroups(const Tensors& all) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(Tensors{all[0], all[1]});
  groups.emplace_back(Tensors{all[2]}, std::make_unique<RuleOptions>(OtherAdam()));
  return groups;
}
constexpr int kGenerations = 4;
void AddAfter(int step, const Tensors& all, ShardedOptimizer& optimizer) {
  if (step == 1) optimizer.add_parameters({all[3]});
  if (step != 3) return;
  optimizer.add_parameters({all[4], all[5]}, 1);
  optimizer.add_parameters({all[6]}, 0);
}
// By position over the groups in order, in the end.
constexpr int kAtPosition[] = {0, 1, 3, 6, 2, 4, 5};

struct Expected {
  Tensors values;
  std::vector<std::map<std::string, at::Tensor>> states;
};

// Of optimizers that begin when their parameters are added.
Expected OfSeparateOptimizers(int steps) {
  Expected expected;
  expected.values = Parameters();
  const Tensors& all = expected.values;
  ExpectAllOk(RunRanks(1, [&](ShardedOptimizerOptions options) {
    std::vector<std::pair<int, Tensors>> parts = {
        {1, {all[0], all[1]}}, {1, {all[2]}}, {2, {all[3]}}, {4, {all[4], all[5]}}, {4, {all[6]}}};
    std::vector<std::unique_ptr<ShardedOptimizer>> optimizers;
    for (size_t i = 0; i < parts.size(); ++i) {
      options.optimizer = absl::StrCat("of part ", i);
      optimizers.push_back(std::make_unique<ShardedOptimizer>(
          parts[i].second, i == 1 || i == 3 ? OtherAdam() : Adam(), options));
    }
    for (int step = 1; step <= steps; ++step) {
      GiveGradients(all, step);
      for (size_t i = 0; i < parts.size(); ++i) {
        if (step >= parts[i].first) optimizers[i]->step();
      }
    }
    expected.states.resize(all.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      for (const at::Tensor& each : parts[i].second) {
        for (size_t p = 0; p < all.size(); ++p) {
          if (all[p].is_same(each)) expected.states[p] = optimizers[i]->state(each);
        }
      }
    }
  }));
  return expected;
}

void ExpectState(const StateDict& dict, const Expected& expected) {
  ASSERT_EQ(dict.param_groups.size(), 2u);
  EXPECT_THAT(dict.param_groups[0].params, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(dict.param_groups[1].params, ElementsAre(4, 5, 6));
  ASSERT_EQ(dict.state.size(), kShapes.size());
  for (size_t position = 0; position < kShapes.size(); ++position) {
    const StateValues& values = dict.state.at(static_cast<int64_t>(position));
    const auto& slots = expected.states[kAtPosition[position]];
    EXPECT_EQ(values.size(), slots.size()) << position;
    for (const auto& [slot, tensor] : slots) {
      EXPECT_TRUE(at::equal(values.at(slot).toTensor(), tensor)) << slot << " at " << position;
    }
  }
}

// That it is of an optimizer over these groups.
void ExpectShare(const StateDict& share, const std::vector<OptimizerParamGroup>& groups,
                 const ShardedOptimizer& optimizer) {
  ASSERT_EQ(share.param_groups.size(), groups.size());
  int64_t next = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    ASSERT_EQ(share.param_groups[g].params.size(), groups[g].params().size());
    for (size_t i = 0; i < groups[g].params().size(); ++i, ++next) {
      EXPECT_EQ(share.param_groups[g].params[i], next);
      for (const auto& [slot, tensor] : optimizer.state(groups[g].params()[i])) {
        EXPECT_TRUE(at::equal(share.state.at(next).at(slot).toTensor(), tensor)) << slot;
      }
    }
  }
}

class AddedParametersTest : public ::testing::TestWithParam<GrowthCase> {};

TEST_P(AddedParametersTest, AddedBetweenSteps_BitsOfOptimizersThatBeginThenInTheGroupsOrder) {
  constexpr int kSteps = 6;
  const Expected before_loading = OfSeparateOptimizers(kSteps - 1);
  const Expected expected = OfSeparateOptimizers(kSteps);
  RunGrowthCase(GetParam(), kGenerations, [&](const ShardedOptimizerOptions& options) {
    const Tensors all = Parameters();
    ShardedOptimizer optimizer(FirstGroups(all), Adam(), options);
    for (int step = 1; step < kSteps; ++step) {
      GiveGradients(all, step);
      optimizer.step();
      const std::vector<OwnedRange> before = optimizer.owner_of(all[1]);
      const auto state = optimizer.state(all[1]);
      const void* const values = all[1].data_ptr();
      AddAfter(step, all, optimizer);
      EXPECT_EQ(all[1].data_ptr(), values);
      const std::vector<OwnedRange> after = optimizer.owner_of(all[1]);
      ASSERT_EQ(after.size(), before.size());
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_EQ(after[i].rank, before[i].rank);
        EXPECT_EQ(after[i].offset_elements, before[i].offset_elements);
      }
      for (const auto& [slot, tensor] : optimizer.state(all[1])) {
        EXPECT_TRUE(at::equal(tensor, state.at(slot))) << slot;
      }
    }
    // In the user's order.
    const auto divided = optimizer.partition_parameters();
    int position = 0;
    for (size_t g = 0; g < 2; ++g) {
      for (const at::Tensor& parameter : optimizer.param_groups()[g].params()) {
        EXPECT_TRUE(parameter.is_same(all[kAtPosition[position]])) << position;
        for (const OwnedRange& range : optimizer.owner_of(position)) {
          const Tensors& owned = divided[range.rank][g].params();
          const auto is_it = [&](const at::Tensor& each) { return each.is_same(parameter); };
          EXPECT_TRUE(std::any_of(owned.begin(), owned.end(), is_it)) << position;
        }
        EXPECT_EQ(optimizer.owner_of(position)[0].rank, optimizer.owner_of(parameter)[0].rank);
        ++position;
      }
    }
    optimizer.verify_replicas();
    // The state goes out and in again.
    optimizer.consolidate_state_dict(-1);
    const StateDict dict = optimizer.state_dict();
    ExpectState(dict, before_loading);
    EXPECT_EQ(DigestLines(optimizer.local_state_dict()),
              DigestLines(optimizer.rank_local_state_dict(options.rank, dict)));
    ExpectShare(optimizer.local_state_dict(), divided[options.rank], optimizer);
    const NamedStateDict named = optimizer.named_state_dict();
    EXPECT_THAT(named.param_groups[1].params,
                ElementsAre("parameter_2", "parameter_4", "parameter_5"));
    for (const at::Tensor& parameter : all) {
      auto slots = optimizer.state(parameter);
      for (auto& [slot, tensor] : slots) tensor.zero_();
      optimizer.set_state(parameter, slots);
    }
    if (options.rank % 2 == 0) {
      optimizer.load_state_dict(dict, 0);
    } else {
      optimizer.load_state_dict(StateDict(), 0);
    }
    optimizer.load_state_dict(named);
    GiveGradients(all, kSteps);
    optimizer.step();
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(at::equal(all[i], expected.values[i]))
          << "parameter " << i << " of rank " << options.rank;
    }
    optimizer.consolidate_state_dict(-1);
    ExpectState(optimizer.state_dict(), expected);
    optimizer.Close();
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, AddedParametersTest, ::testing::ValuesIn(testing::GrowthCases()),
                         [](const auto& info) { return info.param.name; });

// Momentum and all values are exact, so that the bits are torch's.
TEST(AddedParameters, ThroughTheBaseClass_TheNextStepTakesThemAsTorchs) {
  ExpectAllOk(RunRanksOfOneHost(2, [](const ShardedOptimizerOptions& options) {
                const auto sgd = torch::optim::SGDOptions(0.25).momentum(0.5);
                const Tensors ours = Parameters();
                const Tensors theirs = Parameters();
                ShardedOptimizer optimizer({ours[0]}, sgd, options);
                torch::optim::SGD torchs({theirs[0]}, sgd);
                const auto step = [&](torch::optim::Optimizer& each, const Tensors& all, int n) {
                  GiveGradients(all, n);
                  if (n == 2) {
                    each.add_param_group(OptimizerParamGroup(Tensors{all[1]}));
                    each.add_parameters({all[2], all[3]});
                  }
                  if (n == 3) each.add_parameters({all[4]});
                  if (n == 3) each.param_groups()[0].options().set_lr(0.125);
                  each.step();
                };
                for (int n = 1; n <= 4; ++n) {
                  step(optimizer, ours, n);
                  step(torchs, theirs, n);
                }
                optimizer.consolidate_state_dict(-1);
                std::ostringstream saved;
                torch::save(optimizer, saved);
                std::istringstream archive(saved.str());
                torch::load(torchs, archive);
                step(optimizer, ours, 5);
                step(torchs, theirs, 5);
                std::ostringstream torchs_saved;
                torch::save(torchs, torchs_saved);
                std::istringstream back(torchs_saved.str());
                torch::load(optimizer, back);
                step(optimizer, ours, 6);
                step(torchs, theirs, 6);
                for (size_t i = 0; i < 5; ++i) {
                  EXPECT_TRUE(at::equal(ours[i], theirs[i])) << "parameter " << i;
                }
                ASSERT_EQ(optimizer.param_groups().size(), 2u);
                EXPECT_EQ(optimizer.param_groups()[0].params().size(), 4u);
              }).thrown);
}

TEST(AddedParameters, OfOtherTypesAndToAnEmptyGroup_AreStepped) {
  ExpectAllOk(RunRanksOfOneHost(2, [](const ShardedOptimizerOptions& options) {
                const at::Tensor a = Parameter({1}, 4);
                const at::Tensor wide = at::full({3}, 4.0, at::kDouble).set_requires_grad(true);
                const at::Tensor half = at::full({9}, 4.0, at::kBFloat16).set_requires_grad(true);
                const std::vector<OptimizerParamGroup> groups = {OptimizerParamGroup(Tensors{}),
                                                                 OptimizerParamGroup(Tensors{a})};
                ShardedOptimizer optimizer(groups, Sgd(1), options);
                optimizer.add_parameters({wide, half, wide});  // one twice: counted once
                ASSERT_EQ(optimizer.param_groups()[0].params().size(), 2u);
                for (const at::Tensor& each : {a, wide, half}) {
                  each.mutable_grad() = at::full(each.sizes(), 1.0, each.options());
                }
                optimizer.step();
                EXPECT_EQ(First(a), 3);
                EXPECT_EQ(wide[2].item<double>(), 3);
                EXPECT_EQ(half[8].item<double>(), 3);
                EXPECT_TRUE(optimizer.param_groups()[0].params()[0].is_same(wide));
              }).thrown);
}

// What a whole group is stepped with, such as its matrices.
TEST(AddedParameters, ToAGroupWhoseRuleNeedsWholeParameters_BitsOfAGroupOfTheirOwn) {
  const auto train = [](bool as_group) {
    Tensors values;
    ExpectAllOk(RunRanksOfOneHost(2, [&](const ShardedOptimizerOptions& options) {
                  const Tensors all = Parameters();
                  ShardedOptimizer optimizer({all[0], all[2]}, RuleOptions("adafactor"), options);
                  for (int step = 1; step <= 3; ++step) {
                    GiveGradients(all, step);
                    optimizer.step();
                    if (step != 1) continue;
                    if (as_group) {
                      optimizer.add_param_group(OptimizerParamGroup(Tensors{all[4], all[6]}));
                    } else {
                      optimizer.add_parameters({all[4], all[6]});
                    }
                  }
                  if (options.rank == 0) values = all;
                }).thrown);
    return values;
  };
  const Tensors in_group = train(false);
  const Tensors as_group = train(true);
  for (size_t i = 0; i < in_group.size(); ++i) {
    EXPECT_TRUE(at::equal(in_group[i], as_group[i])) << i;
  }
}

TEST(AddedParameters, WhatWasConsolidatedBefore_KeepsItsOrderAndNames) {
  ExpectAllOk(RunRanksOfOneHost(2, [](const ShardedOptimizerOptions& options) {
                const Tensors all = Parameters();
                ShardedOptimizer optimizer(FirstGroups(all), Adam(), options);
                GiveGradients(all, 1);
                optimizer.step();
                optimizer.consolidate_state_dict(-1);
                const std::vector<std::string> lines = DigestLines(optimizer.state_dict());
                optimizer.add_parameters({all[3]});
                EXPECT_EQ(DigestLines(optimizer.state_dict()), lines);
                const NamedStateDict named = optimizer.named_state_dict();
                EXPECT_THAT(named.param_groups[1].params, ElementsAre("parameter_2"));
                const absl::Status status =
                    ErrorOf([&] { optimizer.load_state_dict(optimizer.state_dict()); });
                EXPECT_THAT(std::string(status.message()),
                            HasSubstr("group 0 has 2 parameters, expected 3"));
              }).thrown);
}

}  // namespace
}  // namespace optshard
