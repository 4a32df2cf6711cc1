#include "client/sharded_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#include <torch/optim/schedulers/step_lr.h>

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
using ::testing::Each;
using testing::FakeHub;
using testing::First;
using testing::Gradient;
using ::testing::HasSubstr;
using testing::Parameter;
using testing::RunRanks;
using testing::Sgd;
using torch::optim::OptimizerParamGroup;

void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

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

TEST(ShardedOptimizerTest, Step_LrSetOnAGroup_ReachesTheOwner) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 1);
    ShardedOptimizer optimizer({a}, Sgd(1), options);
    optimizer.param_groups()[0].options().set_lr(0.25);
    a.mutable_grad() = Gradient({1}, 1);
    optimizer.step();
    EXPECT_EQ(First(a), 0.75);
  }));
}

TEST(ShardedOptimizerTest, Step_TorchsSchedulers_DriveIt) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 4);
    ShardedOptimizer optimizer({a}, Sgd(1), options);
    a.mutable_grad() = Gradient({1}, 1);
    torch::optim::StepLR every_step(optimizer, /*step_size=*/1, /*gamma=*/0.5);
    torch::optim::ReduceLROnPlateauScheduler plateau(
        optimizer, torch::optim::ReduceLROnPlateauScheduler::min, /*factor=*/0.5, /*patience=*/0);
    optimizer.step();  // 4 - 1
    every_step.step();
    every_step.step();  // torch's begins with the second
    optimizer.step();   // 3 - 0.5
    plateau.step(1.0f);
    plateau.step(2.0f);  // worse: halved
    optimizer.step();    // 2.5 - 0.25
    EXPECT_EQ(First(a), 2.25);
  }));
}

TEST(ShardedOptimizerTest, Step_GroupsWithOptionsOfTheirOwn_OverrideTheDefaults) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 1);
    const at::Tensor b = Parameter({1}, 1);
    const at::Tensor c = Parameter({1}, 1);
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{a});
    groups.emplace_back(std::vector<at::Tensor>{b},
                        std::make_unique<RuleOptions>(RuleOptions("sgd").Set("lr", 0.5)));
    groups.emplace_back(std::vector<at::Tensor>{c},
                        std::make_unique<RuleOptions>(RuleOptions("sgd").Set("maximize", true)));
    ShardedOptimizer optimizer(groups, Sgd(0.25), options);
    for (const at::Tensor& each : {a, b, c}) each.mutable_grad() = Gradient({1}, 1);
    optimizer.step();
    EXPECT_EQ(First(a), 0.75);
    EXPECT_EQ(First(b), 0.5);
    EXPECT_EQ(First(c), 1.25);
    EXPECT_EQ(optimizer.param_groups()[2].options().get_lr(), 0.25);
  }));
}

TEST(ShardedOptimizerTest, Construct_OptionsNotSet_AreInParamGroupsWithTheRulesDefaults) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    ShardedOptimizer optimizer({Parameter({1}, 1)}, RuleOptions("adam").Set("lr", 0.5), options);
    const auto& group = static_cast<RuleOptions&>(optimizer.param_groups()[0].options());
    EXPECT_EQ(group.values(), RuleOptions("adam").Set("lr", 0.5).Complete().values());
  }));
}

TEST(ShardedOptimizerTest, Construct_ParameterTwiceInAGroup_IsCountedAndSteppedOnce) {
  ExpectAllOk(RunRanks(2, [](ShardedOptimizerOptions options) {
    options.parameter_names = {"in.weight", "bias", "out.weight"};
    const at::Tensor tied = Parameter({2}, 1);
    const at::Tensor bias = Parameter({1}, 1);
    const std::vector<OptimizerParamGroup> groups = {
        OptimizerParamGroup(std::vector<at::Tensor>{}),
        OptimizerParamGroup(std::vector<at::Tensor>{tied, bias, tied})};
    ShardedOptimizer optimizer(groups, Sgd(0.25), options);
    ASSERT_EQ(optimizer.param_groups().size(), 2u);
    EXPECT_EQ(optimizer.param_groups()[1].params().size(), 2u);
    for (int step = 1; step <= 2; ++step) {
      optimizer.zero_grad();
      tied.sum().add(bias.sum()).backward();
      optimizer.step();
      EXPECT_EQ(First(tied), 1 - 0.25 * step);
      EXPECT_EQ(First(bias), 1 - 0.25 * step);
    }
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

TEST(ShardedOptimizerTest, Groups_AddedAfterConstruction_AreUnimplemented) {
  ExpectAllOk(RunRanks(1, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 1);
    ShardedOptimizer optimizer({a}, Sgd(1), options);
    const auto code = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const StatusError& error) {
        return error.status().code();
      }
      return absl::StatusCode::kOk;
    };
    const OptimizerParamGroup more(std::vector<at::Tensor>{Parameter({1}, 1)});
    EXPECT_EQ(code([&] { optimizer.add_param_group(more); }), absl::StatusCode::kUnimplemented);
    EXPECT_EQ(code([&] { optimizer.add_parameters({}); }), absl::StatusCode::kUnimplemented);
  }));
}

// Of a base class whose function is not virtual.
TEST(ShardedOptimizerTest, Step_GroupAddedThroughTheBaseClass_IsNoticedFirstAndCanBeUndone) {
  ExpectAllOk(RunRanks(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({1}, 1);
    ShardedOptimizer optimizer({a}, Sgd(0.25), options);
    a.mutable_grad() = Gradient({1}, 1);
    if (options.rank == 1) {
      static_cast<torch::optim::Optimizer&>(optimizer).add_param_group(
          OptimizerParamGroup(std::vector<at::Tensor>{Parameter({1}, 1)}));
      bool called = false;
      const auto closure = [&called] {
        called = true;
        return at::zeros({});
      };
      for (const auto& call : {std::function<void()>([&] { optimizer.step(closure); }),
                               std::function<void()>([&] { optimizer.refresh_parameters(); })}) {
        try {
          call();
          ADD_FAILURE() << "a group was added without a word";
        } catch (const StatusError& error) {
          EXPECT_EQ(error.status().code(), absl::StatusCode::kUnimplemented);
          EXPECT_THAT(error.what(),
                      AllOf(HasSubstr("has 2 groups, and had 1"), HasSubstr("Undo the change")));
        }
      }
      EXPECT_FALSE(called);
      optimizer.param_groups().pop_back();
    }
    optimizer.step();
    EXPECT_EQ(First(a), 0.75);
  }));
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
