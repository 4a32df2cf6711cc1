// Where an optimizer puts a trainer's tensors, and which way of stepping follows from that, on
// ranks of one host with the real shared memory between them.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "client/sharded_optimizer.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::HostRun;
using testing::RunRanksOfOneHost;

constexpr int kRanks = 3;

at::Tensor Parameter(float value) { return at::full({5, 7}, value).set_requires_grad(true); }

float First(const at::Tensor& tensor) { return tensor.const_data_ptr<float>()[0]; }

// The ranks' gradients are 0, 1, 2: their average is 1.
void StepOnce(ShardedOptimizer& optimizer, const std::vector<at::Tensor>& parameters) {
  optimizer.zero_grad();
  for (const at::Tensor& parameter : parameters) {
    parameter.mul(static_cast<double>(optimizer.options().rank)).sum().backward();
  }
  optimizer.step();
}

RuleOptions Sgd() { return RuleOptions("sgd").Set("lr", 0.25); }

TEST(ShardedOptimizerMemoryTest, Step_NoOptionSet_RunsInOnePassWithoutCopyingAGradient) {
  const HostRun run = RunRanksOfOneHost(kRanks, [](const ShardedOptimizerOptions& options) {
    const std::vector<at::Tensor> parameters = {Parameter(1), Parameter(2)};
    ShardedOptimizer optimizer(parameters, Sgd(), options);
    StepOnce(optimizer, parameters);
    EXPECT_EQ(First(parameters[0]), 0.75);
    EXPECT_EQ(First(parameters[1]), 1.75);
    EXPECT_EQ(optimizer.last_step().gradients_copied, 0);
    optimizer.Close();
  });
  EXPECT_THAT(run.thrown, Each(absl::OkStatus()));
  EXPECT_EQ(run.one_pass_ranks, kRanks);
}

TEST(ShardedOptimizerMemoryTest, Step_OffOnOneRank_LeavesItsTensorsAndTheOthersGoOn) {
  const HostRun run = RunRanksOfOneHost(kRanks, [](ShardedOptimizerOptions options) {
    if (options.rank == 1) options.parameters_as_bucket_view = false;
    const at::Tensor parameter = Parameter(1);
    const void* const before = parameter.const_data_ptr();
    ShardedOptimizer optimizer({parameter}, Sgd(), options);
    StepOnce(optimizer, {parameter});
    EXPECT_EQ(First(parameter), 0.75);
    EXPECT_EQ(parameter.const_data_ptr() == before, options.rank == 1);
    optimizer.Close();
  });
  EXPECT_THAT(run.thrown, Each(absl::OkStatus()));
  EXPECT_EQ(run.one_pass_ranks, 0);
}

TEST(ShardedOptimizerMemoryTest, Step_ParameterWithAnAliasOnOneRank_KeepsTheAliasUpToDate) {
  const HostRun run = RunRanksOfOneHost(kRanks, [](const ShardedOptimizerOptions& options) {
    const std::vector<at::Tensor> parameters = {Parameter(1), Parameter(2)};
    at::Tensor alias;
    if (options.rank == 2) alias = parameters[1].detach();
    ShardedOptimizer optimizer(parameters, Sgd(), options);
    StepOnce(optimizer, parameters);
    EXPECT_EQ(First(parameters[1]), 1.75);
    if (options.rank == 2) {
      EXPECT_EQ(First(alias), 1.75);
    }
    optimizer.Close();
  });
  EXPECT_THAT(run.thrown, Each(absl::OkStatus()));
  EXPECT_EQ(run.one_pass_ranks, 0);
}

TEST(ShardedOptimizerMemoryTest, Step_OnWithAnAlias_MovesTheValuesAllTheSame) {
  const HostRun run = RunRanksOfOneHost(2, [](ShardedOptimizerOptions options) {
    options.parameters_as_bucket_view = true;
    const at::Tensor parameter = Parameter(1);
    const at::Tensor alias = parameter.detach();
    ShardedOptimizer optimizer({parameter}, Sgd(), options);
    StepOnce(optimizer, {parameter});
    EXPECT_EQ(First(parameter), 0.875);
    EXPECT_EQ(First(alias), 1);
    optimizer.Close();
  });
  EXPECT_THAT(run.thrown, Each(absl::OkStatus()));
  EXPECT_EQ(run.one_pass_ranks, 2);
}

// A trainer that wants other groups makes another optimizer over the same parameters.
TEST(ShardedOptimizerMemoryTest, Step_SecondOptimizerAfterTheFirst_RunsInOnePassAgain) {
  const at::Tensor parameters[] = {Parameter(1), Parameter(1)};
  for (int time = 1; time <= 2; ++time) {
    const HostRun run = RunRanksOfOneHost(2, [&](const ShardedOptimizerOptions& options) {
      ShardedOptimizer optimizer({parameters[options.rank]}, Sgd(), options);
      StepOnce(optimizer, {parameters[options.rank]});
      optimizer.Close();
    });
    EXPECT_THAT(run.thrown, Each(absl::OkStatus()));
    EXPECT_EQ(run.one_pass_ranks, 2) << "time " << time;
  }
  EXPECT_EQ(First(parameters[0]), 0.75);
}

TEST(ShardedOptimizerMemoryTest, Construct_ShareParametersThoughOff_SaysWhatContradicts) {
  const HostRun run = RunRanksOfOneHost(1, [](ShardedOptimizerOptions options) {
    options.parameters_as_bucket_view = false;
    options.share_parameters = true;
    ShardedOptimizer({Parameter(1)}, Sgd(), options);
  });
  EXPECT_EQ(run.thrown[0].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(run.thrown[0].message()), HasSubstr("share_parameters needs"));
}

}  // namespace
}  // namespace optshard
