// Comparisons of all ranks' parameters, on demand: of every type, wherever they lie, and however
// the ranks speak to each other.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sharded_optimizer.h"
#include "common/dataplane/gloo/gloo_loader.h"
#include "common/dataplane/host_plane.h"
#include "common/errors.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HostRun;
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

enum class Way { kFlat, kInPlace, kOverGloo };
const char* const kWayNames[] = {"Flat", "InPlace", "OverGloo"};

class VerifyReplicasTest : public ::testing::TestWithParam<std::tuple<at::ScalarType, Way>> {
 protected:
  at::ScalarType type() const { return std::get<0>(GetParam()); }
  Way way() const { return std::get<1>(GetParam()); }

  void SetUp() override {
    if (way() == Way::kOverGloo && !GlooIsIsolated()) GTEST_SKIP() << "Gloo is not isolated here";
  }

  at::Tensor Filled(const std::vector<int64_t>& shape, double value) const {
    return at::full(shape, value, at::TensorOptions(type()));
  }

  // Every rank runs `body`, with an optimizer of a and b.
  void OnEveryRank(
      const std::function<void(ShardedOptimizer&, const at::Tensor&, const at::Tensor&)>& body) {
    const HostRun run = RunRanksOfOneHost(
        kRanks,
        [&](ShardedOptimizerOptions options) {
          options.parameters_as_bucket_view = way() == Way::kFlat;
          options.parameter_names = {"a", "b"};
          const at::Tensor a = Filled({2000}, 1).set_requires_grad(true);
          const at::Tensor b = Filled({3, 5}, 2).t().set_requires_grad(true);
          ShardedOptimizer optimizer({a, b}, Sgd(0.25), options);
          body(optimizer, a, b);
          optimizer.Close();
        },
        way() == Way::kOverGloo ? HostPlaneKind::kGloo : HostPlaneKind::kAuto);
    EXPECT_THAT(run.thrown, Each(absl::OkStatus()));
    EXPECT_EQ(run.one_pass_ranks, way() == Way::kFlat ? kRanks : 0);
  }

  void Step(ShardedOptimizer& optimizer, const at::Tensor& a) const {
    a.mutable_grad() = Filled({2000}, 1);
    optimizer.step();
  }
};

TEST_P(VerifyReplicasTest, OneElementChangedOnOneRank_IsNamedOnAllAndTrainingGoesOn) {
  OnEveryRank([this](ShardedOptimizer& optimizer, const at::Tensor& a, const at::Tensor& b) {
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
    EXPECT_EQ(b[4][2].item<double>(), corrupts ? 2.5 : 2);
    Step(optimizer, a);
    EXPECT_EQ(a[0].item<double>(), 0.5);
    EXPECT_TRUE(errors::IsRanksDisagree(Verify(optimizer)));
    optimizer.refresh_parameters();
    EXPECT_EQ(Verify(optimizer), absl::OkStatus());
    EXPECT_EQ(b[4][2].item<double>(), 2);
  });
}

// A backward through what was computed before is no error, and no gradient is touched.
TEST_P(VerifyReplicasTest, BetweenForwardAndBackward_DisturbsNeither) {
  OnEveryRank([this](ShardedOptimizer& optimizer, const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor loss = a.mul(a).sum().add(b.mul(b).sum());
    b.mutable_grad() = Filled({5, 3}, 1).to_sparse();  // which no step would take
    EXPECT_EQ(Verify(optimizer), absl::OkStatus());
    EXPECT_TRUE(b.grad().is_sparse());
    b.mutable_grad().reset();
    loss.backward();
    EXPECT_EQ(a.grad()[0].item<double>(), 2);
  });
}

INSTANTIATE_TEST_SUITE_P(
    TypesAndWays, VerifyReplicasTest,
    ::testing::Combine(::testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf),
                       ::testing::Values(Way::kFlat, Way::kInPlace, Way::kOverGloo)),
    [](const auto& test) {
      return absl::StrCat(c10::toString(std::get<0>(test.param)),
                          kWayNames[static_cast<int>(std::get<1>(test.param))]);
    });

}  // namespace
}  // namespace optshard
