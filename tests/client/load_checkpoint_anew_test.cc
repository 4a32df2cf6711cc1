// An optimizer whose owners are embedded breaks, and its state ends with it: load_checkpoint()
// begins it anew, in the same processes and with those that were started again.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/schedulers/step_lr.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/barrier.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/owner/client_seams.h"
#include "client/sharded_optimizer.h"
#include "common/errors.h"
#include "common/ids.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "tests/client/saved_run.h"
#include "tests/client/state_lines.h"
#include "tests/client/tensors.h"
#include "tests/client/written_checkpoint.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using testing::ErrorOf;
using testing::ExpectAllOk;
using ::testing::HasSubstr;
using testing::SavedRun;
using torch::optim::OptimizerParamGroup;

constexpr int kRanks = 3;
constexpr int kSaved = 3;  // the checkpoint's step
constexpr int kLast = 6;
constexpr char kName[] = "step-000000000003";

// Of one rank. Its gradients depend on the step only.
class Trainer {
 public:
  explicit Trainer(ShardedOptimizerOptions options, float first = 1)
      : parameters_({testing::Parameter({3000}, first), testing::Parameter({7}, first)}) {
    options.policy = PartitionPolicy::kBalanced;
    optimizer_ = std::make_unique<ShardedOptimizer>(parameters_,
                                                    RuleOptions("adam").Set("lr", 0.25), options);
  }
  // After step 1.
  void AddGroup() {
    parameters_.push_back(testing::Parameter({2000}, 2));
    optimizer_->add_param_group(
        OptimizerParamGroup(std::vector<at::Tensor>{parameters_.back()},
                            std::make_unique<RuleOptions>(RuleOptions("adam").Set("lr", 0.5))));
    optimizer_->param_groups()[0].options().set_lr(0.125);
  }
  void StepTo(int last) {
    for (auto step = static_cast<int>(optimizer_->finished_step()) + 1; step <= last; ++step) {
      for (const at::Tensor& each : parameters_) {
        each.mutable_grad() = at::full(each.sizes(), 0.125 * step);
      }
      optimizer_->step();
      if (step == 1) AddGroup();
    }
  }
  std::vector<std::string> State() { return testing::StateLines(*optimizer_, parameters_); }
  ShardedOptimizer& optimizer() { return *optimizer_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  // As the death of the process looks to others.
  void Die() {
    try {
      const std::unique_ptr<ShardedOptimizer> dying = std::move(optimizer_);
      throw 0;
    } catch (int) {
    }
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
};

const SavedRun& TheSaved() {
  static const SavedRun* const saved =
      new SavedRun(testing::SaveRun<Trainer>(kRanks, kSaved, kLast));
  return *saved;
}

void LoadAndGoOn(Trainer& trainer) {
  EXPECT_EQ(trainer.optimizer().load_checkpoint(TheSaved().root).step, kSaved);
  EXPECT_EQ(trainer.optimizer().finished_step(), kSaved);
  EXPECT_EQ(trainer.optimizer().blob(), "blob");
  EXPECT_EQ(trainer.optimizer().param_groups()[0].options().get_lr(), 0.125);
  trainer.StepTo(kLast);
  EXPECT_EQ(trainer.State(), TheSaved().expected);
}

using Body = std::function<void(ShardedOptimizerOptions)>;

void RunInOnePass(const Body& body) {
  const testing::HostRun run = testing::RunRanksOfOneHost(kRanks, body);
  ExpectAllOk(run.thrown);
  // With the constructed and the added group, before and after.
  EXPECT_EQ(run.one_pass_ranks, 4 * kRanks);
}

struct Way {
  const char* name;
  void (*run)(const Body& body);
};

class LoadCheckpointAnew : public ::testing::TestWithParam<Way> {};

TEST_P(LoadCheckpointAnew, ARankIsLost_SurvivorsAndItsSuccessorHaveTheSameBits) {
  TheSaved();
  for (const Rank victim : {0, 1}) {
    SCOPED_TRACE(victim);
    auto* const stepped = new absl::Barrier(kRanks);
    GetParam().run([&](const ShardedOptimizerOptions& options) {
      Trainer trainer(options);
      trainer.StepTo(kSaved + 1);
      // Nobody loses what the victim has still to publish.
      if (stepped->Block()) delete stepped;
      if (options.rank == victim) {
        trainer.Die();
        // Once the others know.
        Trainer successor = [&] {
          while (true) {
            try {
              return Trainer(options, 5);
            } catch (const StatusError& error) {
              EXPECT_TRUE(absl::IsAlreadyExists(error.status())) << error.status();
              absl::SleepFor(absl::Milliseconds(10));
            }
          }
        }();
        successor.AddGroup();
        // Nor does one that does not load go on from its own beginning.
        const absl::Status refused = ErrorOf([&] { successor.StepTo(kLast); });
        EXPECT_TRUE(errors::IsTornStep(refused)) << refused;
        LoadAndGoOn(successor);
        successor.optimizer().Close();
        return;
      }
      if (options.rank == 2) {
        absl::SleepFor(absl::Seconds(1));  // it is told, and makes no call that says so
      } else {
        const absl::Status lost = ErrorOf([&] { trainer.StepTo(kLast); });
        EXPECT_THAT(errors::RanksOf(lost), ::testing::ElementsAre(victim)) << lost;
        EXPECT_EQ(ErrorOf([&] { trainer.StepTo(kLast); }), lost);
      }
      LoadAndGoOn(trainer);
      trainer.optimizer().Close();
    });
  }
}

TEST_P(LoadCheckpointAnew, ARankIsLate_AllGoOnInTheSameProcesses) {
  TheSaved();
  GetParam().run([&](ShardedOptimizerOptions options) {
    options.step_timeout = absl::Milliseconds(500);
    Trainer trainer(options);
    trainer.StepTo(kSaved + 1);
    if (options.rank == 1) absl::SleepFor(absl::Seconds(1));
    const absl::Status late = ErrorOf([&] { trainer.StepTo(kLast); });
    EXPECT_TRUE(absl::IsDataLoss(late) || absl::IsDeadlineExceeded(late)) << late;
    // Such a view keeps the old values, and keeps the tensor from no new memory.
    at::Tensor view;
    if (options.rank == 2) view = trainer.parameters()[0].detach();
    LoadAndGoOn(trainer);
    trainer.optimizer().Close();
  });
}

TEST_P(LoadCheckpointAnew, TheLoadFails_NoStepIsMadeBeforeOneSucceeds) {
  TheSaved();
  GetParam().run([&](ShardedOptimizerOptions options) {
    options.step_timeout = absl::Milliseconds(500);
    Trainer trainer(options);
    trainer.StepTo(kSaved);
    if (options.rank == 1) absl::SleepFor(absl::Seconds(1));
    const absl::Status late = ErrorOf([&] { trainer.StepTo(kLast); });
    EXPECT_FALSE(late.ok());
    // Before anything is given up.
    const std::string before = testing::BytesOf(trainer.parameters()[0]);
    const absl::Status missing =
        ErrorOf([&] { trainer.optimizer().load_checkpoint("/no/such/directory"); });
    EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
    EXPECT_EQ(testing::BytesOf(trainer.parameters()[0]), before);
    EXPECT_EQ(ErrorOf([&] { trainer.StepTo(kLast); }), late);
    // After it.
    for (int call = 0; call < 2; ++call) {
      const absl::Status differs = ErrorOf([&] {
        trainer.optimizer().load_checkpoint(TheSaved().root, options.rank == 0 ? kName : "");
      });
      EXPECT_TRUE(errors::IsRanksDisagree(differs)) << differs;
      const absl::Status refused = ErrorOf([&] { trainer.StepTo(kLast); });
      EXPECT_EQ(refused.code(), late.code());
      EXPECT_THAT(refused.ToString(), HasSubstr("no checkpoint was loaded since"));
      EXPECT_EQ(ErrorOf([&] { trainer.optimizer().consolidate_state_dict(); }), refused);
    }
    LoadAndGoOn(trainer);
    trainer.optimizer().Close();
  });
}

INSTANTIATE_TEST_SUITE_P(All, LoadCheckpointAnew,
                         ::testing::Values(Way{"Messages",
                                               [](const Body& body) {
                                                 ExpectAllOk(testing::RunRanks(kRanks, body));
                                               }},
                                           Way{"OnePass", &RunInOnePass},
                                           Way{"OneCopyOfTheParameters",
                                               [](const Body& body) {
                                                 RunInOnePass([&](ShardedOptimizerOptions options) {
                                                   options.share_parameters = true;
                                                   body(options);
                                                 });
                                               }}),
                         [](const auto& info) { return info.param.name; });

// A trainer may keep it.
TEST(LoadCheckpointAnewWithMainGradients, WhatWasHandedOut_IsWhatTheNextStepReads) {
  const std::string root = testing::NewCheckpointRoot();
  testing::WrittenCheckpoint checkpoint(root);
  ExpectAllOk(testing::RunRanksOfOneHost(2, [&](ShardedOptimizerOptions options) {
                options.step_timeout = absl::Milliseconds(300);
                options.main_gradients = true;
                const at::Tensor parameter =
                    at::full({4}, 16, at::TensorOptions(at::kBFloat16)).set_requires_grad(true);
                ShardedOptimizer optimizer({parameter}, testing::Sgd(1), options);
                const at::Tensor gradient = optimizer.main_grad(parameter);
                const auto step = [&] {
                  gradient.fill_(1);
                  optimizer.step();
                };
                step();
                checkpoint.WriteShare(optimizer, {parameter});
                step();
                if (options.rank == 0) checkpoint.Commit();
                if (options.rank == 1) absl::SleepFor(absl::Milliseconds(600));
                EXPECT_FALSE(ErrorOf(step).ok());
                optimizer.load_checkpoint(root);
                EXPECT_TRUE(optimizer.main_grad(parameter).is_same(gradient));
                EXPECT_EQ(parameter[0].item<float>(), 15);
                step();
                EXPECT_EQ(parameter[0].item<float>(), 14);
                optimizer.Close();
              }).thrown);
}

// What readers find is the new owner, and a scheduler goes on with the optimizer that it has.
TEST(LoadCheckpointAnewTwice, InspectionAndSchedulers_GoOn) {
  const std::string root = testing::NewCheckpointRoot();
  testing::WrittenCheckpoint checkpoint(root);
  ExpectAllOk(testing::RunRanks(2, [&](ShardedOptimizerOptions options) {
    options.step_timeout = absl::Milliseconds(300);
    const at::Tensor parameter = testing::Parameter({1}, 16);
    ShardedOptimizer optimizer({parameter}, testing::Sgd(1), options);
    torch::optim::StepLR halving(optimizer, /*step_size=*/1, /*gamma=*/0.5);
    halving.step();  // the first one changes nothing
    const auto step = [&] {
      parameter.mutable_grad() = testing::Gradient({1}, 1);
      optimizer.step();
    };
    const auto incarnation = [&] {
      ShardViewRegistry* const views = ScopedClientSeams::Current()->views;
      const auto view = views->Find({options.optimizer, options.rank});
      EXPECT_TRUE(view.ok()) << view.status();
      return view.ok() ? (*view)->Describe().member.incarnation : 0;
    };
    step();
    checkpoint.WriteShare(optimizer, {parameter});
    halving.step();
    step();
    if (options.rank == 0) checkpoint.Commit();
    for (int time = 0; time < 2; ++time) {
      EXPECT_EQ(testing::First(parameter), 14.5);
      const Incarnation before = incarnation();
      if (options.rank == 1) absl::SleepFor(absl::Milliseconds(600));
      EXPECT_FALSE(ErrorOf(step).ok());
      optimizer.load_checkpoint(root);
      EXPECT_GT(incarnation(), before);
      EXPECT_EQ(testing::First(parameter), 15);
      EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 1);
      halving.step();
      EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.5);
      step();
    }
    optimizer.Close();
  }));
}

}  // namespace
}  // namespace optshard
