// A trainer that attaches to a shard server as the successor of another one.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client/sharded_optimizer.h"
#include "client/sharded_optimizer_options.h"
#include "tests/client/attached_options.h"
#include "tests/server/node/node_rig.h"

namespace optshard {
namespace {

class OneTrainer {
 public:
  OneTrainer(testing::NodeRig& rig, Rank rank, float first) {
    parameter_ = at::full({3}, first).set_requires_grad(true);
    ShardedOptimizerOptions options = testing::AttachedTo(rig, rank);
    optimizer_ = std::make_unique<ShardedOptimizer>(std::vector<at::Tensor>{parameter_},
                                                    RuleOptions("sgd").Set("lr", 1.0), options);
  }

  void Step() {
    parameter_.mutable_grad() = at::full({3}, 1.0F);
    optimizer_->step();
  }
  float value() const { return parameter_.const_data_ptr<float>()[0]; }
  ShardedOptimizer& optimizer() { return *optimizer_; }

 private:
  at::Tensor parameter_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
};

// It would meet the others' step, or wait for them in vain.
TEST(ShardedOptimizerResumeTest, Construct_Successor_DoesNotSynchroniseAgain) {
  testing::NodeRig rig(2);
  rig.OnEveryRank([&](Rank rank) {
    OneTrainer trainer(rig, rank, 5);
    trainer.Step();
    if (rank == 1) {
      trainer.optimizer().Close();
      OneTrainer successor(rig, rank, 9);
      EXPECT_EQ(successor.optimizer().finished_step(), 1u);
      EXPECT_EQ(successor.value(), 4);
      successor.Step();
      EXPECT_EQ(successor.value(), 3);
      return;
    }
    trainer.Step();
    EXPECT_EQ(trainer.value(), 3);
  });
}

}  // namespace
}  // namespace optshard
