#include "client/sharded_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/errors.h"
#include "common/gradient_mode.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using ::testing::AllOf;
using testing::ExpectAllOk;
using testing::FakeHub;
using testing::First;
using testing::Gradient;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RunRanks;
using testing::Sgd;

TEST(ShardedOptimizerTest, Step_GradientsOfTwoRanks_AreAveraged) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({3}, 1);
    ShardedOptimizer optimizer({a}, Sgd(0.5), options);
    a.mutable_grad() = Gradient({3}, options.rank == 0 ? 1 : 3);
    optimizer.step();
    EXPECT_EQ(First(a), 0);  // 1 - 0.5 * (1 + 3) / 2
    EXPECT_EQ(optimizer.last_step().step, 1u);
    EXPECT_FALSE(optimizer.last_step().skipped);
    optimizer.Close();
  }));
}

TEST(ShardedOptimizerTest, Construct_RanksWithOtherValues_HaveRankZerosAfterwards) {
  ExpectAllOk(RunRanks(3, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({2000}, static_cast<float>(options.rank + 5));
    const at::Tensor b = Parameter({3}, static_cast<float>(options.rank + 6));
    ShardedOptimizer optimizer({a, b}, Sgd(0.5), options);
    EXPECT_EQ(First(a), 5);
    EXPECT_EQ(First(b), 6);
  }));
}

TEST(ShardedOptimizerTest, Step_Closure_ReturnsItsLossAndComputesGradients) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 1);
    ShardedOptimizer optimizer({a}, Sgd(0.5), options);
    const at::NoGradGuard no_grad;
    const at::Tensor loss = optimizer.step([&] {
      at::Tensor value = a.mul(2).sum();
      value.backward();
      return value;
    });
    EXPECT_EQ(First(loss.detach()), 2);
    EXPECT_EQ(First(a), 0);
    EXPECT_FALSE(optimizer.step().defined());
  }));
}

TEST(ShardedOptimizerTest, Step_GradientOnOneRankOnly_CountsAsZeroOnTheOther) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 1);
    ShardedOptimizer optimizer({a}, Sgd(1), options);
    if (options.rank == 1) a.mutable_grad() = Gradient({1}, 1);
    optimizer.step();
    EXPECT_EQ(First(a), 0.5);
  }));
}

TEST(ShardedOptimizerTest, Step_AveragedModeAndGradientOnOneRankOnly_IsAnErrorOnBoth) {
  const std::vector<absl::Status> statuses = RunRanks(2, [](ShardedOptimizerOptions options) {
    options.gradient_mode = GradientMode::kAveraged;
    options.parameter_names = {"fc.weight"};
    const at::Tensor a = Parameter({1}, 1);
    ShardedOptimizer optimizer({a}, Sgd(1), options);
    if (options.rank == 1) a.mutable_grad() = Gradient({1}, 1);
    absl::Status refused;
    try {
      optimizer.step();
    } catch (const StatusError& error) {
      refused = error.status();
    }
    EXPECT_EQ(First(a), 1);
    // Nothing has changed: it can be corrected.
    a.mutable_grad() = Gradient({1}, 1);
    optimizer.step();
    EXPECT_EQ(First(a), 0);
    optimizer.Close();
    throw StatusError(refused);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("fc.weight"));
  }
}

TEST(ShardedOptimizerTest, Step_NoGradientAnywhere_IsSkipped) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 1);
    ShardedOptimizer optimizer({a}, RuleOptions("adam").Set("weight_decay", 0.1), options);
    optimizer.step();
    EXPECT_TRUE(optimizer.last_step().skipped);
    EXPECT_EQ(First(a), 1);
  }));
}

TEST(ShardedOptimizerTest, Step_ZeroSizeParameterAndMoreRanksThanParameters_Works) {
  ExpectAllOk(RunRanks(4, [](const ShardedOptimizerOptions& options) {
    const at::Tensor empty = Parameter({0, 7}, 1);
    const at::Tensor a = Parameter({1}, 1);
    ShardedOptimizer optimizer({empty, a}, Sgd(0.25), options);
    a.sum().add(empty.sum()).backward();
    optimizer.step();
    EXPECT_EQ(First(a), 0.75);
    optimizer.Close();
  }));
}

TEST(ShardedOptimizerTest, Step_HyperparametersDifferBetweenRanks_IsAnErrorNamingTheOption) {
  const std::vector<absl::Status> statuses =
      RunRanks(2, [](const ShardedOptimizerOptions& options) {
        const at::Tensor a = Parameter({1}, 1);
        ShardedOptimizer optimizer({a}, Sgd(1), options);
        a.mutable_grad() = Gradient({1}, 1);
        if (options.rank == 1) optimizer.param_groups()[0].options().set_lr(0.25);
        optimizer.step();
      });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(errors::IsRanksDisagree(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("group 0: lr is 1 on rank 0 but 0.25 on rank 1"));
  }
}

TEST(ShardedOptimizerTest, Step_LrNotANumber_NamesItAndItsRange) {
  const std::vector<absl::Status> statuses =
      RunRanks(2, [](const ShardedOptimizerOptions& options) {
        const at::Tensor a = Parameter({1}, 1);
        ShardedOptimizer optimizer({a}, Sgd(1), options);
        a.mutable_grad() = Gradient({1}, 1);
        optimizer.param_groups()[0].options().set_lr(std::numeric_limits<double>::quiet_NaN());
        absl::Status refused;
        try {
          optimizer.step();
        } catch (const StatusError& error) {
          refused = error.status();
        }
        optimizer.Close();  // with all others, so that none is lost to them
        throw StatusError(refused);
      });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("option \"lr\" is nan; it must be"));
  }
}

TEST(ShardedOptimizerTest, Step_LrOutOfRange_CanBeCorrectedAndCalledAgain) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 1);
    ShardedOptimizer optimizer({a}, Sgd(1), options);
    a.mutable_grad() = Gradient({1}, 1);
    // On all ranks first, then on one alone: the other one goes on waiting for it.
    for (const bool on_all : {true, false}) {
      if (on_all || options.rank == 1) {
        optimizer.param_groups()[0].options().set_lr(-1);
        EXPECT_THROW(optimizer.step(), StatusError);
        optimizer.param_groups()[0].options().set_lr(1);
      }
      optimizer.step();
    }
    EXPECT_EQ(First(a), -1);
    optimizer.Close();
  }));
}

TEST(ShardedOptimizerTest, Step_LrsThatDiffer_CanBeCorrectedAndCalledAgain) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 1);
    ShardedOptimizer optimizer({a}, Sgd(1), options);
    a.mutable_grad() = Gradient({1}, 1);
    if (options.rank == 1) optimizer.param_groups()[0].options().set_lr(0.5);
    EXPECT_THROW(optimizer.step(), StatusError);
    optimizer.param_groups()[0].options().set_lr(1);
    optimizer.step();
    EXPECT_EQ(First(a), 0);
    optimizer.Close();
  }));
}

TEST(ShardedOptimizerTest, Step_SparseGradient_CanBeMendedAndCalledAgain) {
  ExpectAllOk(RunRanks(2, [](ShardedOptimizerOptions options) {
    options.parameter_names = {"embedding"};
    const at::Tensor a = Parameter({2, 2}, 1);
    ShardedOptimizer optimizer({a}, Sgd(1), options);
    a.mutable_grad() = Gradient({2, 2}, 1);
    if (options.rank == 1) {
      a.mutable_grad() = Gradient({2, 2}, 1).to_sparse();
      try {
        optimizer.step();
        ADD_FAILURE() << "a sparse gradient was taken";
      } catch (const StatusError& error) {
        EXPECT_EQ(error.status().code(), absl::StatusCode::kInvalidArgument);
        EXPECT_THAT(error.what(), HasSubstr("\"embedding\""));
      }
      a.mutable_grad() = a.grad().to_dense();
    }
    optimizer.step();
    EXPECT_EQ(First(a), 0);
  }));
}

TEST(ShardedOptimizerTest, Step_ValuesSavedForBackward_MakeTheBackwardAnError) {
  ExpectAllOk(RunRanks(1, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 1);
    ShardedOptimizer optimizer({a}, Sgd(1), options);
    const at::Tensor stale = a.mul(a).sum();
    a.mutable_grad() = Gradient({1}, 1);
    optimizer.step();
    EXPECT_THROW(stale.backward(), c10::Error);
  }));
}

TEST(ShardedOptimizerTest, Step_PeerLost_IsNamedAndTheOptimizerIsBroken) {
  FakeHub::Options hub_options;
  hub_options.world_size = 3;
  FakeHub hub(hub_options);
  const std::vector<absl::Status> statuses =
      RunRanks(hub, 3, [&hub](const ShardedOptimizerOptions& options) {
        const at::Tensor a = Parameter({1}, 1);
        ShardedOptimizer optimizer({a}, Sgd(1), options);
        a.mutable_grad() = Gradient({1}, 1);
        optimizer.step();
        if (options.rank == 2) hub.Kill(2);
        absl::Status first;
        try {
          optimizer.step();
        } catch (const StatusError& error) {
          first = error.status();
        }
        EXPECT_FALSE(first.ok());
        try {
          optimizer.step();
        } catch (const StatusError& error) {
          EXPECT_EQ(error.status(), first);
          throw;
        }
      });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(errors::RanksOf(statuses[rank]), std::vector<Rank>{2}) << statuses[rank];
  }
  EXPECT_FALSE(statuses[2].ok());
}

TEST(ShardedOptimizerTest, StateBytes_Adam_AreDividedAmongTheRanks) {
  std::vector<int64_t> bytes(2);
  ExpectAllOk(RunRanks(2, [&bytes](const ShardedOptimizerOptions& options) {
    const std::vector<at::Tensor> parameters = {Parameter({100}, 1), Parameter({60}, 1),
                                                Parameter({40}, 1)};
    ShardedOptimizer optimizer(parameters, RuleOptions("adam"), options);
    bytes[options.rank] = optimizer.state_bytes();
  }));
  EXPECT_EQ(bytes[0], 100 * 2 * 4);
  EXPECT_EQ(bytes[1], 100 * 2 * 4);
}

TEST(ShardedOptimizerTest, StateBytes_FrozenParameter_CountsInFull) {
  std::vector<int64_t> bytes(2);
  ExpectAllOk(RunRanks(2, [&bytes](ShardedOptimizerOptions options) {
    options.policy = PartitionPolicy::kGreedyInOrder;
    const std::vector<at::Tensor> parameters = {Gradient({100}, 1), Parameter({60}, 1),
                                                Parameter({40}, 1)};
    ShardedOptimizer optimizer(parameters, RuleOptions("adam"), options);
    bytes[options.rank] = optimizer.state_bytes();
  }));
  EXPECT_EQ(bytes[0], 100 * 2 * 4);
  EXPECT_EQ(bytes[1], 100 * 2 * 4);
}

TEST(ShardedOptimizerTest, Refresh_ValuesEditedOnEveryRank_AreRankZerosAfterwards) {
  for (const bool views : {false, true}) {
    ExpectAllOk(RunRanks(3, [views](ShardedOptimizerOptions options) {
      options.parameters_as_bucket_view = views;
      const at::Tensor a = Parameter({2000}, 1);
      const at::Tensor b = Parameter({2}, 1);
      ShardedOptimizer optimizer({a, b}, Sgd(0.25), options);
      a.set_data(Gradient({2000}, static_cast<float>(options.rank + 5)));  // as torch::load does
      {
        const at::NoGradGuard no_grad;
        b.fill_(static_cast<float>(options.rank + 6));
      }
      optimizer.refresh_parameters();
      EXPECT_EQ(First(a), 5);
      EXPECT_EQ(First(b), 6);
      a.mutable_grad() = Gradient({2000}, 1);
      optimizer.step();
      EXPECT_EQ(First(a), 4.75);
    }));
  }
}

TEST(ShardedOptimizerTest, Step_LivingRankThatDoesNotStep_IsNamedAfterTheTimeout) {
  absl::Notification told;
  const std::vector<absl::Status> statuses = RunRanks(2, [&told](ShardedOptimizerOptions options) {
    if (options.rank == 0) options.step_timeout = absl::Milliseconds(30);
    const at::Tensor a = Parameter({1}, 1);
    ShardedOptimizer optimizer({a}, Sgd(1), options);
    a.mutable_grad() = Gradient({1}, 1);
    if (options.rank == 1) return told.WaitForNotification();
    try {
      optimizer.step();
    } catch (const StatusError&) {
      EXPECT_EQ(First(a), 1);
      told.Notify();
      throw;
    }
    told.Notify();
  });
  EXPECT_TRUE(errors::IsPeersTimedOut(statuses[0])) << statuses[0];
  EXPECT_EQ(errors::RanksOf(statuses[0]), std::vector<Rank>{1});
}

TEST(ShardedOptimizerTest, Step_AfterClose_IsFailedPrecondition) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    ShardedOptimizer optimizer({Parameter({1}, 1)}, Sgd(1), options);
    optimizer.Close();
    optimizer.Close();
    try {
      optimizer.step();
      ADD_FAILURE() << "a closed optimizer has stepped";
    } catch (const StatusError& error) {
      EXPECT_EQ(error.status().code(), absl::StatusCode::kFailedPrecondition);
    }
  }));
}

TEST(ShardedOptimizerTest, Construct_ParameterListsDiffer_ShowsBothOnEveryRank) {
  const std::vector<absl::Status> statuses = RunRanks(2, [](ShardedOptimizerOptions options) {
    options.parameter_names = {"fc.weight"};
    ShardedOptimizer({Parameter({10, 64 + options.rank}, 1)}, Sgd(1), options);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(errors::IsRanksDisagree(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("fc.weight"), HasSubstr("[10, 64]"), HasSubstr("[10, 65]")));
  }
}

}  // namespace
}  // namespace optshard
