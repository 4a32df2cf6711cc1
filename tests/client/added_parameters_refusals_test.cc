// Parameters that cannot be added to param groups, and ranks that do not add the same ones.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <vector>

#include "client/sharded_optimizer.h"
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
using ::testing::HasSubstr;
using testing::Parameter;
using testing::Parameters;
using testing::RunRanksOfOneHost;
using testing::Sgd;
using torch::optim::OptimizerParamGroup;
using Tensors = std::vector<at::Tensor>;

TEST(AddedParametersRefusals, WhatCannotBeAdded_IsRefusedBeforeAnythingIsSent) {
  ExpectAllOk(
      RunRanksOfOneHost(2, [](const ShardedOptimizerOptions& options) {
        const at::Tensor a = Parameter({2}, 4);
        const at::Tensor b = Parameter({2}, 4);
        const at::Tensor whole = at::full({4}, 1.0);
        std::vector<OptimizerParamGroup> groups;
        groups.emplace_back(Tensors{a});
        groups.emplace_back(Tensors{b}, std::make_unique<RuleOptions>(
                                            RuleOptions::OfClass<torch::optim::SGD>(1.0)));
        ShardedOptimizer optimizer(groups, Sgd(1), options);
        const struct {
          Tensors parameters;
          int group;
          const char* says;
        } kTable[] = {
            {{Parameter({1}, 1), a}, 0, "number 1 of the parameters to be added is number 0"},
            {{b}, 0, "is given again as"},
            {{}, 0, "no parameters are to be added to param group 0"},
            {{at::Tensor()}, 0, "undefined tensor"},
            {{a.mul(2)}, 0, "not a leaf"},
            {{whole.slice(0, 0, 2).set_requires_grad(true)}, 0, "shares its storage"},
            {{Parameter({1}, 1)}, 2, "there is no param group 2"},
            {{Parameter({1}, 1)}, -1, "there is no param group -1"},
            {{Parameter({1}, 1)}, 1, "param group 1 is stepped by the optimizer class"},
        };
        for (const auto& row : kTable) {
          if (options.rank != 0) continue;
          const absl::Status status =
              ErrorOf([&] { optimizer.add_parameters(row.parameters, row.group); });
          EXPECT_EQ(status.code(), row.group == 1 ? absl::StatusCode::kUnimplemented
                                                  : absl::StatusCode::kInvalidArgument);
          EXPECT_THAT(std::string(status.message()),
                      AllOf(HasSubstr("rank 0"), HasSubstr(row.says)));
        }
        EXPECT_EQ(optimizer.param_groups()[0].params().size(), 1u);
        a.mutable_grad() = Gradient({2}, 1);
        optimizer.step();
        EXPECT_EQ(First(a), 3);
      }).thrown);
}

TEST(AddedParametersRefusals, RanksAddDifferently_AllAreToldAndGoOn) {
  ExpectAllOk(RunRanksOfOneHost(2, [](const ShardedOptimizerOptions& options) {
                const Tensors all = Parameters({{5, 3}, {2049}, {3, 1500}, {7}});
                const std::vector<OptimizerParamGroup> groups = {
                    OptimizerParamGroup({all[0], all[1]}), OptimizerParamGroup(Tensors{all[2]})};
                ShardedOptimizer optimizer(groups, Sgd(1), options);
                const auto told = [&](const auto& zero, const auto& one) {
                  const absl::Status status = ErrorOf([&] { options.rank == 0 ? zero() : one(); });
                  EXPECT_TRUE(errors::IsRanksDisagree(status)) << status;
                  return std::string(status.message());
                };
                const auto to = [&](int group) {
                  return [&, group] { optimizer.add_parameters({all[3]}, group); };
                };
                EXPECT_THAT(told(to(0), to(1)),
                            AllOf(HasSubstr("rank 0 has \"parameter_3\" float32 [7] in group 0"),
                                  HasSubstr("rank 1 has \"parameter_3\" float32 [7] in group 1")));
                const auto as_group = [&] {
                  optimizer.add_param_group(OptimizerParamGroup(Tensors{all[3]}));
                };
                EXPECT_THAT(told(as_group, to(1)),
                            AllOf(HasSubstr("in group 2"), HasSubstr("in group 1")));
                EXPECT_EQ(optimizer.param_groups().size(), 2u);
                to(1)();
                EXPECT_EQ(optimizer.param_groups()[1].params().size(), 2u);
                GiveGradients(all, 1);
                optimizer.step();
              }).thrown);
}

TEST(AddedParametersRefusals, ThroughTheBaseClassOnOneRankAlone_AllAreToldAndItCanBeUndone) {
  ExpectAllOk(RunRanksOfOneHost(2, [](const ShardedOptimizerOptions& options) {
                const at::Tensor a = Parameter({1}, 4);
                ShardedOptimizer optimizer({a}, Sgd(1), options);
                torch::optim::Optimizer& base = optimizer;
                a.mutable_grad() = Gradient({1}, 1);
                if (options.rank == 1) base.add_parameters({Parameter({1}, 1)});
                const absl::Status status = ErrorOf([&] { base.step(); });
                EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
                EXPECT_THAT(std::string(status.message()),
                            AllOf(HasSubstr("rank 1 adds"), HasSubstr("rank 0 is in step()")));
                Tensors& parameters = optimizer.param_groups()[0].params();
                EXPECT_EQ(parameters.size(), options.rank == 1 ? 2u : 1u);
                if (options.rank == 1) parameters.pop_back();
                base.step();
                EXPECT_EQ(First(a), 3);
              }).thrown);
}

}  // namespace
}  // namespace optshard
