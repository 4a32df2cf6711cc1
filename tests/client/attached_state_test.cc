// The optimizer state of a rank whose owner is in a shard server.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/sharded_optimizer.h"
#include "common/errors.h"
#include "tests/client/attached_options.h"
#include "tests/client/state_jobs.h"
#include "tests/client/tensors.h"
#include "tests/server/node/kept_server.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using testing::AttachedTo;
using testing::ErrorOf;
using testing::First;
using testing::Gradient;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Momentum;
using testing::NodeRig;
using testing::Parameter;
using testing::RunAttached;
using Slots = std::map<std::string, at::Tensor>;

TEST(AttachedStateTest, StateAndSetState_HaveTheBitsOfAnEmbeddedOwner) {
  const testing::RankStarter embedded = [](const auto& body) {
    return testing::RunRanks(testing::kStateJobRanks, body);
  };
  const testing::RankStarter attached = [](const auto& body) {
    return RunAttached(testing::kStateJobRanks, body);
  };
  std::vector<testing::StateJob> jobs = testing::StateJobs();
  jobs.push_back({RuleOptions("adam"), PartitionPolicy::kBalanced, 32, "int8_dynamic"});
  jobs.push_back({RuleOptions("adam"), PartitionPolicy::kGreedy, 24, "int8_companded"});
  for (const testing::StateJob& job : jobs) {
    SCOPED_TRACE(absl::StrCat(job.rule.rule(), ", ", NameOf(job.policy), ", ", job.state_dtype));
    const auto half = testing::TrainStateJob(embedded, job, 1, 2, {});
    testing::ExpectSameState(testing::TrainStateJob(attached, job, 1, 2, {}), half);
    testing::ExpectSameState(testing::TrainStateJob(attached, job, 3, 5, half),
                             testing::TrainStateJob(embedded, job, 3, 5, half));
  }
}

TEST(AttachedStateTest, SuccessorOfATrainerThatAddedAGroup_AddsItAndGoesOnFromItsValues) {
  testing::ExpectAllOk(RunAttached(2, [](ShardedOptimizerOptions options) {
    options.wait_for_trainers = true;
    const auto group_of = [](const at::Tensor& parameter) {
      return torch::optim::OptimizerParamGroup(std::vector<at::Tensor>{parameter});
    };
    {
      const at::Tensor a = Parameter({1}, 4);
      const at::Tensor b = Parameter({1}, 4);
      for (const at::Tensor& each : {a, b}) each.mutable_grad() = Gradient({1}, 1);
      ShardedOptimizer optimizer({a}, testing::Sgd(1), options);
      optimizer.step();
      optimizer.add_param_group(group_of(b));
      optimizer.step();
      EXPECT_EQ(First(a), 2);
      EXPECT_EQ(First(b), 3);
      optimizer.Close();
    }
    const at::Tensor a = Parameter({1}, 100);
    const at::Tensor b = Parameter({1}, 100);
    ShardedOptimizer optimizer({a}, testing::Sgd(1), options);
    for (const at::Tensor& each : {a, b}) each.mutable_grad() = Gradient({1}, 1);
    const absl::Status status = ErrorOf([&] { optimizer.step(); });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("add_param_group()"));
    optimizer.add_param_group(group_of(b));
    EXPECT_EQ(First(a), 2);
    EXPECT_EQ(First(b), 3);
    optimizer.step();
    EXPECT_EQ(First(a), 1);
    EXPECT_EQ(First(b), 2);
    optimizer.Close();
  }));
}

// More elements than go at a time. Values that the codes have come back as they were.
TEST(AttachedStateTest, LargeParameters_GoInPieces) {
  for (const char* const format : {"float32", "int8_dynamic"}) {
    SCOPED_TRACE(format);
    testing::ExpectAllOk(RunAttached(2, [&](ShardedOptimizerOptions options) {
      options.policy = PartitionPolicy::kBalanced;
      options.state_dtype = format;
      const at::Tensor a = Parameter({70001}, 1);
      ShardedOptimizer optimizer({a}, RuleOptions("adam"), options);
      const int64_t elements = optimizer.state(a).at("exp_avg").numel();
      EXPECT_GT(elements, 2 * 16384);
      const at::Tensor block = at::arange(elements).div(256, "floor").to(at::kFloat);
      optimizer.set_state(
          a, {{"exp_avg", block}, {"exp_avg_sq", block.mul(2)}, {"step", Gradient({}, 3)}});
      EXPECT_TRUE(at::equal(optimizer.state(a).at("exp_avg"), block));
      EXPECT_TRUE(at::equal(optimizer.state(a).at("exp_avg_sq"), block.mul(2)));
      EXPECT_EQ(First(optimizer.state(a).at("step")), 3);
      optimizer.Close();
    }));
  }
}

TEST(AttachedStateTest, WhatDoesNotFit_IsRefusedAndNothingChanges) {
  testing::ExpectAllOk(RunAttached(2, [](const ShardedOptimizerOptions& options) {
    const at::Tensor a = Parameter({2, 3}, 1);
    ShardedOptimizer optimizer({a}, Momentum(), options);
    a.mutable_grad() = Gradient({2, 3}, 1);
    optimizer.step();
    EXPECT_TRUE(absl::IsInvalidArgument(ErrorOf([&] { optimizer.state(a.detach()); })));
    Slots slots = {{"momentum_buffer", Gradient({3, 2}, 9)}, {"step", Gradient({}, 9)}};
    const absl::Status refused = ErrorOf([&] { optimizer.set_state(a, slots); });
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    if (options.rank == 0) {
      EXPECT_THAT(std::string(refused.message()), HasSubstr("has the shape [3, 2]"));
      EXPECT_EQ(First(optimizer.state(a).at("momentum_buffer")), 1);
      slots = {{"momentum_buffer", Gradient({2, 3}, 9)}, {"step", Gradient({}, 0.5)}};
      EXPECT_THAT(ErrorOf([&] { optimizer.set_state(a, slots); }).ToString(), HasSubstr("is 0.5"));
      EXPECT_EQ(First(optimizer.state(a).at("momentum_buffer")), 1);
      EXPECT_EQ(First(optimizer.state(a).at("step")), 1);
    } else {
      EXPECT_THAT(std::string(refused.message()), HasSubstr("rank 1 owns nothing"));
      EXPECT_THAT(optimizer.state(a), IsEmpty());
    }
    optimizer.Close();
    const absl::Status closed = ErrorOf([&] { optimizer.state(a); });
    EXPECT_TRUE(absl::IsFailedPrecondition(closed)) << closed;
  }));
}

TEST(AttachedStateTest, WhileAnotherTrainerIsAway_AndForASuccessor_IsThereAllTheSame) {
  NodeRig rig(2);
  absl::Notification left;
  rig.OnEveryRank([&](Rank rank) {
    const at::Tensor a = Parameter({2, 3}, 1);
    auto optimizer = std::make_unique<ShardedOptimizer>(std::vector<at::Tensor>{a}, Momentum(),
                                                        AttachedTo(rig, rank));
    a.mutable_grad() = Gradient({2, 3}, 1);
    optimizer->step();
    if (rank == 1) {
      optimizer->Close();
      left.Notify();
      return;
    }
    EXPECT_TRUE(left.WaitForNotificationWithTimeout(absl::Seconds(20)));
    EXPECT_EQ(First(optimizer->state(a).at("momentum_buffer")), 1);
    optimizer->set_state(a, {{"momentum_buffer", Gradient({2, 3}, 5)}, {"step", Gradient({}, 7)}});
    optimizer->Close();
    optimizer.reset();
    const at::Tensor next = Parameter({2, 3}, 9);
    ShardedOptimizer successor({next}, Momentum(), AttachedTo(rig, rank));
    EXPECT_EQ(First(successor.state(next).at("momentum_buffer")), 5);
    EXPECT_EQ(First(successor.state(next).at("step")), 7);
    EXPECT_EQ(First(next), 0.75);
    successor.Close();
  });
}

// The call is made again as long as the owner is away.
void SetState(ShardedOptimizer& optimizer, const at::Tensor& parameter, const Slots& slots) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  absl::Status status;
  do {
    status = ErrorOf([&] { optimizer.set_state(parameter, slots); });
  } while (errors::IsOwnerAway(status) && absl::Now() < deadline);
  EXPECT_TRUE(status.ok()) << status;
}

// Parameters after two steps, and a third one from the state that is set between.
std::vector<float> TrainWithSetState(ShardedOptimizer& optimizer, const at::Tensor& a,
                                     const at::Tensor& b, const std::function<void()>& between) {
  const auto step = [&] {
    for (const at::Tensor& each : {a, b}) each.mutable_grad() = Gradient({2, 3}, 1);
    optimizer.step();
  };
  step();
  step();
  SetState(optimizer, a, {{"momentum_buffer", Gradient({2, 3}, 5)}, {"step", Gradient({}, 7)}});
  between();
  SetState(optimizer, b, {{"momentum_buffer", Gradient({2, 3}, 8)}, {"step", Gradient({}, 9)}});
  step();
  return {First(a), First(b), First(optimizer.state(a).at("momentum_buffer")),
          First(optimizer.state(b).at("momentum_buffer"))};
}

TEST(AttachedStateTest, ServerReplacedBetweenTwoCalls_KeepsWhatWasSet) {
  testing::KeptServer server;
  const at::Tensor a = Parameter({2, 3}, 1);
  const at::Tensor b = Parameter({2, 3}, 1);
  ShardedOptimizer optimizer({a, b}, Momentum(), AttachedTo(server.address(), 0, 1));
  const std::vector<float> actual = TrainWithSetState(optimizer, a, b, [&] {
    server.Kill();
    server.Return();
  });
  optimizer.Close();
  testing::ExpectAllOk(testing::RunRanks(1, [&](const ShardedOptimizerOptions& options) {
    const at::Tensor c = Parameter({2, 3}, 1);
    const at::Tensor d = Parameter({2, 3}, 1);
    ShardedOptimizer embedded({c, d}, Momentum(), options);
    EXPECT_EQ(TrainWithSetState(embedded, c, d, [] {}), actual);
    embedded.Close();
  }));
}

}  // namespace
}  // namespace optshard
