// Param groups that are added between steps.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/owner/client_seams.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "common/errors.h"
#include "tests/client/growth_cases.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using testing::ErrorOf;
using testing::ExpectAllOk;
using testing::First;
using testing::GiveGradients;
using testing::Gradient;
using testing::GrowthCase;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::Parameters;
using testing::RunGrowthCase;
using testing::RunRanks;
using testing::RunRanksOfOneHost;
using testing::Sgd;
using torch::optim::OptimizerParamGroup;

const std::vector<std::vector<int64_t>> kShapes = {{5, 3}, {2049}, {3, 1500}, {7}, {1024, 3}, {1}};

OptimizerParamGroup AddedGroup(const std::vector<at::Tensor>& parameters, int which) {
  return which == 0 ? OptimizerParamGroup(
                          {parameters[2], parameters[3]},
                          std::make_unique<RuleOptions>(RuleOptions("adam").Set("lr", 0.5)))
                    : OptimizerParamGroup({parameters[4], parameters[5]});
}

// Of an optimizer for each group, which begins when the group is added.
std::vector<at::Tensor> ValuesOfSeparateOptimizers(int steps) {
  std::vector<at::Tensor> all = Parameters(kShapes);
  ExpectAllOk(RunRanks(1, [&](ShardedOptimizerOptions options) {
    const RuleOptions adam = RuleOptions("adam").Set("lr", 0.25);
    std::vector<std::unique_ptr<ShardedOptimizer>> optimizers;
    for (int step = 1; step <= steps; ++step) {
      GiveGradients(all, step);
      if (step == 1 || step == 2 || step == 4) {
        options.optimizer = absl::StrCat("of step ", step);
        const std::vector<OptimizerParamGroup> groups = {
            step == 1 ? OptimizerParamGroup({all[0], all[1]}) : AddedGroup(all, step / 2 - 1)};
        optimizers.push_back(std::make_unique<ShardedOptimizer>(groups, adam, options));
      }
      for (const auto& optimizer : optimizers) optimizer->step();
    }
  }));
  return all;
}

class AddedGroupsTest : public ::testing::TestWithParam<GrowthCase> {};

TEST_P(AddedGroupsTest, AddedBetweenSteps_BitsOfOptimizersThatBeginThenAndNothingMoves) {
  constexpr int kSteps = 5;
  const std::vector<at::Tensor> expected = ValuesOfSeparateOptimizers(kSteps);
  RunGrowthCase(GetParam(), 3, [&](const ShardedOptimizerOptions& options) {
    const std::vector<at::Tensor> all = Parameters(kShapes);
    ShardedOptimizer optimizer({all[0], all[1]}, RuleOptions("adam").Set("lr", 0.25), options);
    for (int step = 1; step <= kSteps; ++step) {
      GiveGradients(all, step);
      optimizer.step();
      if (step != 1 && step != 3) continue;
      const std::vector<OwnedRange> before = optimizer.owner_of(1);
      const auto state = optimizer.state(all[1]);
      const void* const values = all[1].data_ptr();
      optimizer.add_param_group(AddedGroup(all, step / 2));
      EXPECT_EQ(all[1].data_ptr(), values);
      const std::vector<OwnedRange> after = optimizer.owner_of(1);
      ASSERT_EQ(after.size(), before.size());
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_EQ(after[i].rank, before[i].rank);
        EXPECT_EQ(after[i].offset_elements, before[i].offset_elements);
      }
      for (const auto& [slot, tensor] : optimizer.state(all[1])) {
        EXPECT_TRUE(at::equal(tensor, state.at(slot))) << slot;
      }
    }
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(at::equal(all[i], expected[i]))
          << "parameter " << i << " of rank " << options.rank;
    }
    EXPECT_EQ(optimizer.partition_parameters()[0].size(), 3u);
    optimizer.verify_replicas();
    optimizer.consolidate_state_dict();
    if (options.rank == 0) {
      EXPECT_EQ(optimizer.state_dict().state.size(), all.size());
      EXPECT_EQ(optimizer.state_dict().param_groups.size(), 3u);
    }
    optimizer.Close();
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, AddedGroupsTest, ::testing::ValuesIn(testing::GrowthCases()),
                         [](const auto& info) { return info.param.name; });

TEST(AddedGroups, OptionsSchedulersAndState_GoOnWithTheNewGroup) {
  ExpectAllOk(RunRanksOfOneHost(2, [](const ShardedOptimizerOptions& options) {
                const at::Tensor a = Parameter({1}, 4);
                const at::Tensor b = Parameter({1}, 4);
                ShardedOptimizer optimizer({a}, Sgd(1).Set("momentum", 0.5), options);
                torch::optim::StepLR halving(optimizer, /*step_size=*/1, /*gamma=*/0.5);
                optimizer.add_param_group(OptimizerParamGroup(std::vector<at::Tensor>{b}));
                a.mutable_grad() = Gradient({1}, 1);
                b.mutable_grad() = Gradient({1}, 1);
                optimizer.step();
                EXPECT_EQ(First(a), 3);
                EXPECT_EQ(First(b), 3);
                optimizer.param_groups()[1].options().set_lr(0.25);
                optimizer.step();  // momentum 1.5
                EXPECT_EQ(First(a), 1.5);
                EXPECT_EQ(First(b), 3 - 0.375);
                // State of the new group can be taken out, and the whole loaded again.
                optimizer.consolidate_state_dict(-1);
                const StateDict dict = optimizer.state_dict();
                optimizer.load_state_dict(dict);
                optimizer.step();  // momentum 1.75
                EXPECT_EQ(First(b), 3 - 0.375 - 0.4375);
              }).thrown);
}

TEST(AddedGroups, ValuesThatDifferBetweenRanks_BecomeThoseOfRankZero) {
  ExpectAllOk(RunRanksOfOneHost(2, [](const ShardedOptimizerOptions& options) {
                const at::Tensor a = Parameter({1}, 4);
                const at::Tensor b = Parameter({3}, 2 + options.rank);
                ShardedOptimizer optimizer({a}, Sgd(1), options);
                optimizer.add_param_group(OptimizerParamGroup(std::vector<at::Tensor>{b}));
                EXPECT_EQ(First(b), 2);
                EXPECT_EQ(First(a), 4);
              }).thrown);
}

TEST(AddedGroups, RanksAddDifferentGroups_AllAreToldAndGoOn) {
  ExpectAllOk(RunRanksOfOneHost(2, [](const ShardedOptimizerOptions& options) {
                const at::Tensor a = Parameter({1}, 4);
                const at::Tensor b = Parameter({3 + options.rank}, 2);
                ShardedOptimizer optimizer({a}, Sgd(1), options);
                const absl::Status status = ErrorOf([&] {
                  optimizer.add_param_group(OptimizerParamGroup(std::vector<at::Tensor>{b}));
                });
                EXPECT_TRUE(errors::IsRanksDisagree(status)) << status;
                EXPECT_THAT(std::string(status.message()),
                            AllOf(HasSubstr("float32 [3]"), HasSubstr("float32 [4]"),
                                  HasSubstr("rank 0 has"), HasSubstr("rank 1 has")));
                EXPECT_EQ(optimizer.param_groups().size(), 1u);
                a.mutable_grad() = Gradient({1}, 1);
                optimizer.step();
                EXPECT_EQ(First(a), 3);
                const at::Tensor same = Parameter({2}, 2);
                optimizer.add_param_group(OptimizerParamGroup(std::vector<at::Tensor>{same}));
                same.mutable_grad() = Gradient({2}, 1);
                optimizer.step();
                EXPECT_EQ(First(same), 1);
                EXPECT_EQ(First(a), 2);
              }).thrown);
}

TEST(AddedGroups, ARankStepsMeanwhile_BothAreToldAndGoOn) {
  ExpectAllOk(RunRanksOfOneHost(2, [](const ShardedOptimizerOptions& options) {
                const at::Tensor a = Parameter({1}, 4);
                const at::Tensor b = Parameter({1}, 4);
                ShardedOptimizer optimizer({a}, Sgd(1), options);
                a.mutable_grad() = Gradient({1}, 1);
                const OptimizerParamGroup group(std::vector<at::Tensor>{b});
                const absl::Status status = ErrorOf([&] {
                  options.rank == 0 ? optimizer.add_param_group(group)
                                    : static_cast<void>(optimizer.step());
                });
                EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
                EXPECT_THAT(std::string(status.message()),
                            AllOf(HasSubstr("rank 0 adds a param group"),
                                  HasSubstr("rank 1 is in step()")));
                EXPECT_EQ(First(a), 4);
                optimizer.add_param_group(group);
                b.mutable_grad() = Gradient({1}, 1);
                optimizer.step();
                EXPECT_EQ(First(a), 3);
                EXPECT_EQ(First(b), 3);
              }).thrown);
}

TEST(AddedGroups, ARankThatDoesNotCome_IsNamedAndAllGoOn) {
  absl::Notification told;
  ExpectAllOk(RunRanksOfOneHost(2, [&told](ShardedOptimizerOptions options) {
                const at::Tensor a = Parameter({1}, 4);
                const at::Tensor b = Parameter({1}, 4);
                if (options.rank == 0) options.join_timeout = absl::Seconds(2);
                ShardedOptimizer optimizer({a}, Sgd(1), options);
                a.mutable_grad() = Gradient({1}, 1);
                const OptimizerParamGroup group(std::vector<at::Tensor>{b});
                if (options.rank == 0) {
                  const absl::Status status = ErrorOf([&] { optimizer.add_param_group(group); });
                  EXPECT_TRUE(errors::IsPeersTimedOut(status)) << status;
                  EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>({1}));
                  told.Notify();
                } else {
                  EXPECT_TRUE(told.WaitForNotificationWithTimeout(absl::Seconds(20)));
                }
                optimizer.step();
                EXPECT_EQ(First(a), 3);
              }).thrown);
}

TEST(AddedGroups, WhatCannotBeAdded_IsRefusedBeforeAnythingIsSent) {
  ExpectAllOk(RunRanksOfOneHost(2, [](const ShardedOptimizerOptions& options) {
                const at::Tensor a = Parameter({2}, 4);
                ShardedOptimizer optimizer({a}, Sgd(1), options);
                const auto code = [&](std::vector<at::Tensor> parameters,
                                      const RuleOptions& rule = Sgd(1)) {
                  return ErrorOf([&] {
                           optimizer.add_param_group(OptimizerParamGroup(
                               std::move(parameters), std::make_unique<RuleOptions>(rule)));
                         })
                      .code();
                };
                if (options.rank == 0) {
                  EXPECT_EQ(code({a}), absl::StatusCode::kInvalidArgument);  // in two groups
                  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
                  EXPECT_EQ(code({at::Tensor()}), absl::StatusCode::kInvalidArgument);
                  EXPECT_EQ(code({a.mul(2)}), absl::StatusCode::kInvalidArgument);  // no leaf
                  EXPECT_EQ(code({Parameter({1}, 1)}, Sgd(-1)), absl::StatusCode::kInvalidArgument);
                  EXPECT_EQ(code({Parameter({1}, 1)}, RuleOptions::OfClass<torch::optim::SGD>(1.0)),
                            absl::StatusCode::kUnimplemented);
                  const at::Tensor whole = at::full({4}, 1.0);
                  EXPECT_EQ(code({whole.slice(0, 0, 2).set_requires_grad(true)}),
                            absl::StatusCode::kInvalidArgument);  // tied
                }
                EXPECT_EQ(optimizer.param_groups().size(), 1u);
                a.mutable_grad() = Gradient({2}, 1);
                optimizer.step();
                EXPECT_EQ(First(a), 3);
              }).thrown);
}

// Rank 1 cannot connect the plane of the second generation the first time.
TEST(AddedGroups, ARankCannotMakeTheMemory_AllAreToldAndGoOn) {
  std::atomic<int> refused = 0;
  ExpectAllOk(RunRanks(2, [&refused](const ShardedOptimizerOptions& options) {
    ClientSeams seams = *ScopedClientSeams::Current();
    seams.plane = [&refused, rank = options.rank, plane = seams.plane](
                      const PlaneRequest& request,
                      const ReplicaOfRank& replica) -> absl::StatusOr<std::unique_ptr<DataPlane>> {
      if (rank == 1 && request.generation == 2 && refused++ == 0) {
        return absl::ResourceExhaustedError("no memory left");
      }
      return plane(request, replica);
    };
    const ScopedClientSeams scoped(seams);
    const at::Tensor a = Parameter({1}, 4);
    const at::Tensor b = Parameter({1}, 4);
    ShardedOptimizer optimizer({a}, Sgd(1), options);
    const OptimizerParamGroup group(std::vector<at::Tensor>{b});
    const absl::Status status = ErrorOf([&] { optimizer.add_param_group(group); });
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 1: "), HasSubstr("no memory left")));
    EXPECT_EQ(optimizer.param_groups().size(), 1u);
    for (const at::Tensor& each : {a, b}) each.mutable_grad() = Gradient({1}, 1);
    optimizer.step();
    EXPECT_EQ(First(a), 3);
    EXPECT_EQ(First(b), 4);
  }));
}

TEST(AddedGroups, ThroughTheBaseClass_TheNextStepTakesThem) {
  ExpectAllOk(RunRanksOfOneHost(2, [](const ShardedOptimizerOptions& options) {
                const std::vector<at::Tensor> all = Parameters({{1}, {2}, {3}});
                ShardedOptimizer optimizer({all[0]}, Sgd(1), options);
                torch::optim::Optimizer& base = optimizer;
                base.add_param_group(OptimizerParamGroup(std::vector<at::Tensor>{all[1]}));
                base.add_param_group(
                    OptimizerParamGroup({all[2]}, std::make_unique<RuleOptions>(Sgd(0.5))));
                for (const at::Tensor& each : all) {
                  each.mutable_grad() = Gradient(each.sizes().vec(), 1);
                }
                base.step();
                EXPECT_EQ(First(all[0]), 0.25 - 1);
                EXPECT_EQ(First(all[1]), 0.5 - 1);
                EXPECT_EQ(First(all[2]), 0.75 - 0.5);
                EXPECT_EQ(optimizer.param_groups().size(), 3u);
              }).thrown);
}

}  // namespace
}  // namespace optshard
