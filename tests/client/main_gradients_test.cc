// Float32 gradients of 16-bit parameters, over the ways in which a step reads them.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sharded_optimizer.h"
#include "tests/client/attached_options.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::RunRanks;
using testing::RunRanksOfOneHost;

at::Tensor HalfZeros() { return at::zeros({5, 7}, at::kHalf).set_requires_grad(true); }

void Backward(const at::Tensor& parameter, double gradient) {
  parameter.mul(gradient).sum().backward();
}

double First(const at::Tensor& tensor) { return tensor.detach().flatten()[0].item<double>(); }

RuleOptions Sgd() { return RuleOptions("sgd").Set("lr", 1.0); }

// In float16 each of the two small ones would be lost; their sum is not.
void ExpectSumsInFloat32(ShardedOptimizerOptions options) {
  options.main_gradients = true;
  const at::Tensor half = HalfZeros();
  const at::Tensor untouched = HalfZeros();
  const at::Tensor full = at::zeros({3}).set_requires_grad(true);
  ShardedOptimizer optimizer({half, full, untouched}, Sgd(), options);
  for (int step = 1; step <= 2; ++step) {
    optimizer.zero_grad();
    for (const double gradient : {1.0, 0x1p-11, 0x1p-11}) {
      Backward(half, gradient);
      EXPECT_FALSE(half.grad().defined());
    }
    Backward(full, 2);
    optimizer.step();
    EXPECT_EQ(First(half), -step * (1 + 0x1p-10));
    EXPECT_EQ(First(full), -2 * step);
    EXPECT_EQ(First(untouched), 0);
    EXPECT_EQ(optimizer.last_step().gradients_copied, 0);
  }
  optimizer.Close();
}

TEST(MainGradientsTest, Step_SeveralBackwardsInOnePass_AddUpInFloat32) {
  const testing::HostRun run = RunRanksOfOneHost(2, ExpectSumsInFloat32);
  EXPECT_THAT(run.thrown, Each(absl::OkStatus()));
  EXPECT_EQ(run.one_pass_ranks, 2);
}

TEST(MainGradientsTest, Step_SeveralBackwardsOverMessages_AddUpInFloat32) {
  for (const bool views : {false, true}) {
    for (const PartitionPolicy policy :
         {PartitionPolicy::kBalanced, PartitionPolicy::kReplicated}) {
      SCOPED_TRACE(absl::StrCat(views ? "views, " : "in place, ", NameOf(policy)));
      EXPECT_THAT(RunRanks(2,
                           [&](ShardedOptimizerOptions options) {
                             options.parameters_as_bucket_view = views;
                             options.policy = policy;
                             ExpectSumsInFloat32(options);
                           }),
                  Each(absl::OkStatus()));
    }
  }
}

TEST(MainGradientsTest, Step_SeveralBackwardsAttachedToAServer_AddUpInFloat32) {
  testing::NodeRig rig(1);
  ExpectSumsInFloat32(testing::AttachedTo(rig, 0));
}

TEST(MainGradientsTest, MainGrad_ThatTheTrainerFillsAndKeeps_IsStepped) {
  for (const GradientMode mode : {GradientMode::kReduce, GradientMode::kAveraged}) {
    EXPECT_THAT(RunRanks(2,
                         [&](ShardedOptimizerOptions options) {
                           options.main_gradients = true;
                           options.gradient_mode = mode;
                           const at::Tensor half = HalfZeros();
                           ShardedOptimizer optimizer({half}, Sgd(), options);
                           const at::Tensor gradient = optimizer.main_grad(half);
                           EXPECT_EQ(gradient.scalar_type(), at::kFloat);
                           EXPECT_EQ(gradient.sizes(), half.sizes());
                           for (int step = 1; step <= 2; ++step) {
                             optimizer.zero_grad();
                             EXPECT_EQ(First(gradient), 0);
                             gradient.add_(0.25);
                             Backward(half, 0.25);
                             optimizer.step();
                             EXPECT_EQ(First(half), -0.5 * step);
                           }
                           // Of zeros, but there.
                           optimizer.zero_grad();
                           optimizer.step();
                           EXPECT_EQ(optimizer.last_step().step, 3u);
                           optimizer.Close();
                         }),
                Each(absl::OkStatus()));
  }
}

TEST(MainGradientsTest, Step_GradientThatTheTrainerHasSet_IsTakenInAndCounted) {
  EXPECT_THAT(RunRanks(2,
                       [](ShardedOptimizerOptions options) {
                         options.main_gradients = true;
                         const at::Tensor half = HalfZeros();
                         ShardedOptimizer optimizer({half}, Sgd(), options);
                         half.mutable_grad() = at::full({5, 7}, 0.5, at::kHalf);
                         optimizer.step();
                         EXPECT_EQ(First(half), -0.5);
                         EXPECT_EQ(optimizer.last_step().gradients_copied, 1);
                         EXPECT_FALSE(half.grad().defined());
                         optimizer.Close();
                       }),
              Each(absl::OkStatus()));
}

TEST(MainGradientsTest, MainGrad_WhereThereIsNone_SaysWhatToUse) {
  EXPECT_THAT(RunRanks(1,
                       [](ShardedOptimizerOptions options) {
                         const at::Tensor half = HalfZeros();
                         const at::Tensor full = at::zeros({3}).set_requires_grad(true);
                         for (const bool set : {false, true}) {
                           options.main_gradients = set;
                           options.optimizer = set ? "with" : "without";
                           ShardedOptimizer optimizer({half, full}, Sgd(), options);
                           const at::Tensor& bad = set ? full : half;
                           try {
                             optimizer.main_grad(bad);
                             ADD_FAILURE() << "expected an error";
                           } catch (const StatusError& error) {
                             EXPECT_TRUE(absl::IsInvalidArgument(error.status())) << error.what();
                             EXPECT_THAT(error.what(), HasSubstr("use parameter.grad()"));
                           }
                           optimizer.Close();
                         }
                       }),
              Each(absl::OkStatus()));
}

}  // namespace
}  // namespace optshard
