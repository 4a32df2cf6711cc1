// Parameters that are frozen and unfrozen while training runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "client/sharded_optimizer.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::First;
using testing::Gradient;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::Parameter;
using testing::RunRanks;
using testing::Sgd;

TEST(TrainableTest, Step_FrozenParameter_StaysUntilItIsUnfrozen) {
  for (const bool views : {false, true}) {
    const std::vector<absl::Status> statuses =
        RunRanks(2, [views](ShardedOptimizerOptions options) {
          options.parameters_as_bucket_view = views;
          const at::Tensor a = Parameter({1}, 1);
          const at::Tensor b = Parameter({1}, 1);
          b.set_requires_grad(false);
          ShardedOptimizer optimizer({a, b}, Sgd(0.25), options);
          const auto step = [&] {
            optimizer.zero_grad();
            a.sum().add(b.sum()).backward();
            optimizer.step();
          };
          step();
          EXPECT_EQ(First(a), 0.75);
          EXPECT_EQ(First(b), 1);
          b.set_requires_grad(true);
          a.set_requires_grad(false);
          step();
          EXPECT_EQ(First(a), 0.75);
          EXPECT_EQ(First(b), 0.75);
        });
    EXPECT_THAT(statuses, Each(absl::OkStatus()));
  }
}

// The log of one rank's steps with six parameters, each frozen as `frozen` says.
class TrainableLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 6; ++i) {
      parameters_.push_back(Parameter({1}, 1));
      parameters_.back().mutable_grad() = Gradient({1}, 1);
    }
  }

  void Run(const std::function<void(ShardedOptimizer&)>& body) {
    const std::vector<absl::Status> statuses = RunRanks(1, [&](ShardedOptimizerOptions options) {
      options.parameter_names = {"p0", "p1", "p2", "p3", "p4", "p5"};
      ShardedOptimizer optimizer(parameters_, Sgd(0.25), options);
      body(optimizer);
    });
    EXPECT_THAT(statuses, Each(absl::OkStatus()));
  }

  void SetTrainable(bool trainable, const std::vector<size_t>& which) {
    for (const size_t i : which) parameters_[i].set_requires_grad(trainable);
  }

  static std::string LogOfStep(ShardedOptimizer& optimizer) {
    ::testing::internal::CaptureStderr();
    optimizer.step();
    return ::testing::internal::GetCapturedStderr();
  }

  std::vector<at::Tensor> parameters_;
};

TEST_F(TrainableLogTest, Step_RequiresGradSwitched_IsLoggedOnceForEachSwitch) {
  SetTrainable(false, {5});
  Run([this](ShardedOptimizer& optimizer) {
    EXPECT_THAT(LogOfStep(optimizer), IsEmpty());  // so it was at construction
    SetTrainable(false, {1});
    EXPECT_THAT(LogOfStep(optimizer), AllOf(HasSubstr("false of parameter \"p1\"."),
                                            HasSubstr("rank=0"), Not(HasSubstr("true of"))));
    EXPECT_THAT(LogOfStep(optimizer), IsEmpty());
    SetTrainable(true, {1, 5});
    SetTrainable(false, {0});
    EXPECT_THAT(LogOfStep(optimizer), HasSubstr("false of parameter \"p0\"; requires_grad is now "
                                                "true of parameters \"p1\", \"p5\"."));
  });
}

TEST_F(TrainableLogTest, Step_ManyParametersSwitched_NamesFourAndCountsTheOthers) {
  Run([this](ShardedOptimizer& optimizer) {
    SetTrainable(false, {0, 1, 2, 3, 4, 5});
    EXPECT_THAT(LogOfStep(optimizer), HasSubstr("\"p3\" and 2 more."));
  });
}

TEST_F(TrainableLogTest, Step_AfterRefreshTrainable_LogsNothing) {
  Run([this](ShardedOptimizer& optimizer) {
    SetTrainable(false, {1});
    optimizer.refresh_trainable();
    EXPECT_THAT(LogOfStep(optimizer), IsEmpty());
    EXPECT_EQ(First(parameters_[1]), 1);
    EXPECT_EQ(First(parameters_[2]), 0.75);
  });
}

}  // namespace
}  // namespace optshard
