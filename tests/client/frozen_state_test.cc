// Closures, and parameters that are frozen for a while, with every form of state: masters,
// corrections, slots of 16 and of 8 bits.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/sharded_optimizer.h"
#include "common/dataplane/gloo/gloo_loader.h"
#include "common/dataplane/host_plane.h"
#include "tests/client/tensors.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/recorded_job.h"
#include "tests/testing/rule_table.h"

namespace optshard {
namespace {

using testing::BytesOf;
using testing::ExpectAllOk;
using testing::HostRun;
using testing::NamedState;
using testing::OrderSensitive;
using testing::RunRanksOfOneHost;

constexpr int kRanks = 2;
constexpr int kSteps = 6;

// So large that they are kept in 8 bits where that is wanted, or not. Those of even index are
// trained always; the others in some jobs not in all steps.
const struct {
  std::vector<int64_t> shape;
  at::ScalarType type;
} kParameters[] = {{{41, 101}, at::kBFloat16}, {{41, 101}, at::kBFloat16}, {{4096}, at::kFloat},
                   {{4100}, at::kFloat},       {{33}, at::kHalf},          {{4097}, at::kHalf}};
constexpr int kCount = std::size(kParameters);

class Trainer {
 public:
  Trainer(const NamedState& state, ShardedOptimizerOptions options) : rank_(options.rank) {
    for (int p = 0; p < kCount; ++p) {
      const auto& [shape, type] = kParameters[p];
      parameters_.push_back(OrderSensitive(shape, 1 + p, type).set_requires_grad(true));
    }
    testing::RecordedJob job;
    job.state = state.options;
    job.main_gradients = state.main_gradients;
    options.log_level = "error";  // not what is frozen
    optimizer_ = std::make_unique<ShardedOptimizer>(
        parameters_, RuleOptions("adam").Set("lr", 0.02).Set("weight_decay", 0.01),
        testing::WithOptionsOf(job, std::move(options)));
  }

  void SetTrainable(bool trainable) {
    for (int p = 1; p < kCount; p += 2) parameters_[p].set_requires_grad(trainable);
  }

  void Step() {
    optimizer_->zero_grad();
    Backward();
    optimizer_->step();
  }

  // Where nothing else is computed with gradients.
  void StepByClosure() {
    const at::NoGradGuard no_grad;
    int calls = 0;
    at::Tensor loss;
    const at::Tensor returned = optimizer_->step([&] {
      ++calls;
      optimizer_->zero_grad();
      return loss = Backward();
    });
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(returned.is_same(loss));
  }

  // Of the parameters of odd index, or of all: their values, and what this rank keeps of them.
  std::string Bytes(bool odd_alone) const {
    std::string bytes;
    for (int p = odd_alone ? 1 : 0; p < kCount; p += odd_alone ? 2 : 1) {
      bytes += BytesOf(parameters_[p]);
      for (const auto& [name, slot] : optimizer_->state(parameters_[p])) bytes += BytesOf(slot);
    }
    return bytes;
  }

  void Close() { optimizer_->Close(); }

 private:
  // Each parameter's gradients follow from how often it had some.
  at::Tensor Backward() {
    at::Tensor loss = at::zeros({});
    for (int p = 0; p < kCount; ++p) {
      if (!parameters_[p].requires_grad()) continue;
      const auto& [shape, type] = kParameters[p];
      const uint64_t seed = 1000 * ++backwards_[p] + 100 * rank_ + p;
      loss = loss.add(parameters_[p].mul(OrderSensitive(shape, seed, type)).sum());
    }
    loss.backward();
    return loss;
  }

  const int rank_;
  std::vector<at::Tensor> parameters_;
  int backwards_[kCount] = {};
  std::unique_ptr<ShardedOptimizer> optimizer_;
};

enum class Way { kByMessages, kInOnePass, kOverGloo };

class FrozenStateTest : public ::testing::TestWithParam<NamedState> {
 protected:
  // What `train` returns on each rank.
  std::vector<std::string> OnEveryRank(Way way, const std::function<std::string(Trainer&)>& train) {
    std::vector<std::string> results(kRanks);
    const auto body = [&](ShardedOptimizerOptions options) {
      options.policy = PartitionPolicy::kBalanced;
      options.parameters_as_bucket_view = way == Way::kInOnePass;
      Trainer trainer(GetParam(), options);
      results[options.rank] = train(trainer);
      trainer.Close();
    };
    if (way == Way::kByMessages) {
      ExpectAllOk(testing::RunRanks(kRanks, body));
    } else {
      const HostRun run = RunRanksOfOneHost(
          kRanks, body, way == Way::kOverGloo ? HostPlaneKind::kGloo : HostPlaneKind::kAuto);
      ExpectAllOk(run.thrown);
      EXPECT_EQ(run.one_pass_ranks, way == Way::kOverGloo ? 0 : kRanks);
    }
    return results;
  }

  static std::vector<Way> Ways() {
    std::vector<Way> ways = {Way::kByMessages, Way::kInOnePass};
    if (GlooIsIsolated()) ways.push_back(Way::kOverGloo);
    return ways;
  }
};

TEST_P(FrozenStateTest, Step_FrozenForTwoSteps_StaysAndGoesOnWhereItStopped) {
  const std::vector<std::string> expected = OnEveryRank(Way::kByMessages, [](Trainer& trainer) {
    for (int step = 0; step < kSteps - 2; ++step) trainer.Step();
    return trainer.Bytes(/*odd_alone=*/true);
  });
  for (const Way way : Ways()) {
    SCOPED_TRACE(static_cast<int>(way));
    const std::vector<std::string> frozen = OnEveryRank(way, [](Trainer& trainer) {
      std::string before;
      for (int step = 1; step <= kSteps; ++step) {
        trainer.SetTrainable(step != 3 && step != 4);
        trainer.Step();
        if (step == 2) before = trainer.Bytes(/*odd_alone=*/true);
        if (step == 4) {
          EXPECT_TRUE(trainer.Bytes(/*odd_alone=*/true) == before);
        }
      }
      std::string after = trainer.Bytes(/*odd_alone=*/true);
      EXPECT_FALSE(after == before);
      return after;
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(frozen[rank] == expected[rank]) << "rank " << rank;
    }
  }
}

TEST_P(FrozenStateTest, Step_GradientsFromAClosure_HasTheBitsOfStepsWithoutOne) {
  const std::vector<std::string> expected = OnEveryRank(Way::kByMessages, [](Trainer& trainer) {
    for (int step = 1; step <= kSteps; ++step) {
      trainer.SetTrainable(step != 3);
      trainer.Step();
    }
    return trainer.Bytes(/*odd_alone=*/false);
  });
  for (const Way way : Ways()) {
    SCOPED_TRACE(static_cast<int>(way));
    const std::vector<std::string> by_closure = OnEveryRank(way, [](Trainer& trainer) {
      for (int step = 1; step <= kSteps; ++step) {
        trainer.SetTrainable(step != 3);
        trainer.StepByClosure();
      }
      return trainer.Bytes(/*odd_alone=*/false);
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(by_closure[rank] == expected[rank]) << "rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(States, FrozenStateTest, ::testing::ValuesIn(testing::TableStates()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace optshard
