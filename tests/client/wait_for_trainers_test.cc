// What step() does while the trainer of another rank is gone, as the option wait_for_trainers says.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "client/owner/client_seams.h"
#include "client/sharded_optimizer.h"
#include "common/clock.h"
#include "common/errors.h"
#include "server/shard/shard_owner.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using testing::RunRanks;

// The shard owner of a rank that has no trainer: it refuses steps until told otherwise, as a shard
// server does on its behalf.
std::unique_ptr<ShardOwner> OwnerWithoutTrainer(const ShardedOptimizerOptions& options,
                                                const RuleOptions& rule) {
  const ClientSeams& seams = *ScopedClientSeams::Current();
  ParameterSpec parameter;
  parameter.name = "parameter_0";
  parameter.shape = {1};
  ShardOwner::Options owner;
  owner.rank = options.rank;
  owner.spec.world_size = options.world_size;
  owner.spec.space = ParameterSpace({{{parameter}}});
  owner.spec.rules = {{rule.rule(), rule.Complete().values()}};
  owner.node = options.node;
  owner.coordinator = seams.coordinator;
  owner.plane_factory = [&seams](const PlaneRequest& request) {
    return seams.plane(request, nullptr);
  };
  return ValueOrThrow(ShardOwner::Start(std::move(owner)));
}

// Rank 0 steps with these options; rank 1 refuses as long as rank 0 has not returned.
struct Outcome {
  absl::Status status;
  absl::Duration took;
  int refusals = 0;
};
Outcome StepWithoutTheOther(bool wait, absl::Duration step_timeout) {
  Outcome outcome;
  ShardOwner* other = nullptr;  // rank 1's; set before rank 0 is constructed
  std::atomic<bool> done = false;
  absl::Notification released;
  const RuleOptions rule = RuleOptions("sgd").Set("lr", 0.25);
  const std::vector<absl::Status> thrown = RunRanks(2, [&](ShardedOptimizerOptions options) {
    if (options.rank == 1) {
      const std::unique_ptr<ShardOwner> owner = OwnerWithoutTrainer(options, rule);
      other = owner.get();
      float parameter = 0;
      const ReplicaTensor tensor = {&parameter, nullptr};
      ThrowIfError(owner->SyncParameters({&tensor, 1}, {}, absl::Seconds(20)));
      while (!done) {
        if (owner->RefuseNextStep("its trainer has ended").ok()) ++outcome.refusals;
      }
      released.WaitForNotification();
      return;
    }
    options.wait_for_trainers = wait;
    options.step_timeout = step_timeout;
    options.close_timeout = absl::Milliseconds(10);
    const at::Tensor a = at::full({1}, 1.0f).set_requires_grad(true);
    ShardedOptimizer optimizer({a}, rule, options);
    a.mutable_grad() = at::full({1}, 1.0f);
    const absl::Time start = Clock::Monotonic().Now();
    try {
      optimizer.step();
    } catch (const StatusError& error) {
      outcome.status = error.status();
    }
    outcome.took = Clock::Monotonic().Now() - start;
    EXPECT_EQ(a.const_data_ptr<float>()[0], 1);
    done = true;
    other->AbortPlane(absl::CancelledError("the test is over"));
    released.Notify();
  });
  EXPECT_TRUE(thrown[0].ok()) << thrown[0];
  return outcome;
}

TEST(WaitForTrainersTest, Step_NotAsked_IsGivenUpAtOnce) {
  const Outcome outcome = StepWithoutTheOther(false, absl::Seconds(20));
  EXPECT_TRUE(errors::IsTrainerGone(outcome.status)) << outcome.status;
  EXPECT_EQ(errors::RanksOf(outcome.status), std::vector<Rank>{1});
  EXPECT_LT(outcome.took, absl::Seconds(10));
}

TEST(WaitForTrainersTest, Step_NobodyComesInTime_IsGivenUpNamingTheRankAndNothingChanged) {
  const absl::Duration timeout = absl::Milliseconds(300);
  const Outcome outcome = StepWithoutTheOther(true, timeout);
  EXPECT_TRUE(errors::IsTrainerGone(outcome.status)) << outcome.status;
  EXPECT_EQ(errors::RanksOf(outcome.status), std::vector<Rank>{1});
  EXPECT_GE(outcome.refusals, 2);  // it has tried again
  EXPECT_LT(outcome.took, absl::Seconds(10));
}

}  // namespace
}  // namespace optshard
