// Comparisons of all ranks' parameters, on demand.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
using ::testing::ElementsAre;
using testing::First;
using testing::Gradient;
using ::testing::HasSubstr;
using testing::HostRun;
using testing::Parameter;
using testing::RunRanksOfOneHost;
using testing::Sgd;

constexpr int kRanks = 3;

absl::Status Verify(ShardedOptimizer& optimizer) {
  try {
    optimizer.verify_replicas();
  } catch (const StatusError& error) {
    return error.status();
  }
  return absl::OkStatus();
}

class VerifyReplicasTest : public ::testing::TestWithParam<bool> {
 protected:
  // Every rank runs `body`, with an optimizer of a and b.
  void OnEveryRank(
      const std::function<void(ShardedOptimizer&, const at::Tensor&, const at::Tensor&)>& body) {
    const HostRun run = RunRanksOfOneHost(kRanks, [&](ShardedOptimizerOptions options) {
      options.parameters_as_bucket_view = GetParam();
      options.parameter_names = {"a", "b"};
      const at::Tensor a = Parameter({2000}, 1);
      const at::Tensor b = Parameter({3, 5}, 2).t().detach().set_requires_grad(true);
      ShardedOptimizer optimizer({a, b}, Sgd(0.25), options);
      body(optimizer, a, b);
      optimizer.Close();
    });
    EXPECT_THAT(run.thrown, Each(absl::OkStatus()));
  }

  static void Step(ShardedOptimizer& optimizer, const at::Tensor& a) {
    a.mutable_grad() = Gradient({2000}, 1);
    optimizer.step();
  }
};

TEST_P(VerifyReplicasTest, OneElementChangedOnOneRank_IsNamedOnAllAndTrainingGoesOn) {
  OnEveryRank([](ShardedOptimizer& optimizer, const at::Tensor& a, const at::Tensor& b) {
    Step(optimizer, a);
    EXPECT_EQ(Verify(optimizer), absl::OkStatus());
    const bool corrupts = optimizer.options().rank == 2;
    if (corrupts) {
      const at::NoGradGuard no_grad;
      b[4][2].fill_(2.5);
    }
    for (int time = 0; time < 2; ++time) {
      const absl::Status different = Verify(optimizer);
      EXPECT_TRUE(errors::IsRanksDisagree(different)) << different;
      EXPECT_THAT(errors::RanksOf(different), ElementsAre(2));
      EXPECT_THAT(std::string(different.message()), HasSubstr("parameter 1 \"b\""));
    }
    EXPECT_EQ(b[4][2].item<float>(), corrupts ? 2.5 : 2);
    Step(optimizer, a);
    EXPECT_EQ(First(a), 0.5);
    EXPECT_TRUE(errors::IsRanksDisagree(Verify(optimizer)));
    optimizer.refresh_parameters();
    EXPECT_EQ(Verify(optimizer), absl::OkStatus());
    EXPECT_EQ(b[4][2].item<float>(), 2);
  });
}

// A backward through what was computed before is no error, and no gradient is touched.
TEST_P(VerifyReplicasTest, BetweenForwardAndBackward_DisturbsNeither) {
  OnEveryRank([](ShardedOptimizer& optimizer, const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor loss = a.mul(a).sum().add(b.mul(b).sum());
    b.mutable_grad() = at::full({5, 3}, 1).to_sparse();  // which no step would take
    EXPECT_EQ(Verify(optimizer), absl::OkStatus());
    EXPECT_TRUE(b.grad().is_sparse());
    b.mutable_grad().reset();
    loss.backward();
    EXPECT_EQ(First(a.grad()), 2);
  });
}

INSTANTIATE_TEST_SUITE_P(Memory, VerifyReplicasTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Flat" : "InPlace"; });

}  // namespace
}  // namespace optshard
