// Shard owners that start with bad options, without the other ranks, or again.

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/generation_shape.h"
#include "common/link/memory_budget.h"
#include "common/membership/coordinator_client.h"
#include "common/plan.h"
#include "common/step_info.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_owner.h"
#include "server/shard/state/shard_ledger.h"
#include "server/shard/state/shard_memory.h"
#include "server/shard/state/shard_store.h"
#include "server/update/group_update.h"
#include "tests/server/shard/owner_rig.h"

namespace optshard::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status StartAlone(const std::function<void(ShardOwner::Options&)>& spoil) {
  OwnerRig rig(OwnerRig::MixedOptions(1));
  spoil(rig.owner_options(0));
  return rig.Start()[0];
}

TEST(ShardOwner_BadOption, IsNamed) {
  const auto expect = [](const std::function<void(ShardOwner::Options&)>& spoil,
                         const std::string& text) {
    const absl::Status status = StartAlone(spoil);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  expect([](ShardOwner::Options& options) { options.rank = 5; }, "rank 5 of world size 1");
  expect([](ShardOwner::Options& options) { options.spec.rules[1].name = "adamant"; },
         "known rules: adadelta, adafactor, adagrad,");
  expect([](ShardOwner::Options& options) { options.threads = -1; }, "threads is -1");
  expect([](ShardOwner::Options& options) { options.coordinator = nullptr; },
         "needs a coordinator");
  expect([](ShardOwner::Options& options) { options.spec.rules.resize(1); }, "of 1 param groups");
  expect(
      [](ShardOwner::Options& options) {
        options.spec.rules[1].hyperparameters.Set("lr", std::numeric_limits<double>::quiet_NaN());
      },
      "param group 1");
  expect(
      [](ShardOwner::Options& options) {
        std::vector<GroupSpec> groups = options.spec.space.groups();
        groups[0].parameters[3].device = "cuda:0";
        options.spec.space = ParameterSpace(groups);
      },
      "parameter 3 \"fc.weight\" is on cuda:0");
}

// As a server keeps it of an owner that has ended before step 1.
ShardMemory MemoryBeforeStepOne(const ShardOwner::Options& owner) {
  const std::vector<std::string> nodes(owner.spec.world_size, "node");
  ShardStore::Options store;
  store.shape = GenerationShape::Make(
      owner.spec, MakePlan(1, owner.spec.space, owner.spec.policy, nodes).value());
  store.rank = owner.rank;
  store.TakeSlotsOf(ValidateGroups(owner.spec).value());
  ShardMemory memory = ShardMemory::Private(ShardStore::BytesFor(store), "a test's state").value();
  ShardLedger(memory.ledger, 0, 0, 0).Begin(1, StepProgress());
  return memory;
}

// Rank 1's server was killed before it wrote down that the state is torn: its ledger says that it
// is before step 1, which fits. A rank that reduced gradients would wait for one that does not.
TEST(ShardOwner_OverStateThatOneRankKnowsToBeTorn, AllRefuseEachStepAtOnce) {
  for (const Rank knowing : {0, 1}) {
    OwnerRig::Options options = OwnerRig::MixedOptions(2);
    options.timeout = absl::Seconds(5);
    OwnerRig rig(options);
    for (Rank r = 0; r < 2; ++r) {
      rig.owner_options(r).memory = {MemoryBeforeStepOne(rig.owner_options(r))};
      rig.owner_options(r).memory_is_torn = r == knowing;
    }
    for (const absl::Status& started : rig.Start()) EXPECT_TRUE(started.ok()) << started;
    rig.GiveGradients(1);
    for (int step = 0; step < 2; ++step) {
      for (const absl::StatusOr<StepInfo>& result : rig.Step()) {
        EXPECT_TRUE(errors::IsTornStep(result.status())) << result.status();
      }
    }
    for (Rank r = 0; r < 2; ++r) EXPECT_TRUE(rig.owner(r).failure().ok());
  }
}

TEST(ShardOwner_ParameterListsDiffer, EveryRankIsShownTheDifference) {
  OwnerRig rig(OwnerRig::MixedOptions(2));
  std::vector<GroupSpec> groups = rig.space().groups();
  groups[0].parameters[1].shape = {8};
  rig.owner_options(1).spec.space = ParameterSpace(groups);
  for (const absl::Status& status : rig.Start()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("conv.bias"), HasSubstr("[7]"), HasSubstr("[8]")));
  }
}

TEST(ShardOwner_RankThatNeverComes, IsNamedByTheDeadline) {
  OwnerRig rig(OwnerRig::MixedOptions(2));
  rig.owner_options(0).join_timeout = absl::Milliseconds(50);
  const absl::StatusOr<std::unique_ptr<ShardOwner>> owner = ShardOwner::Start(rig.owner_options(0));
  EXPECT_EQ(owner.status().code(), absl::StatusCode::kDeadlineExceeded) << owner.status();
  EXPECT_THAT(errors::RanksOf(owner.status()), ElementsAre(1));
}

TEST(ShardOwner_ThatFindsNoMemory, TellsTheOthersWhy) {
  OwnerRig rig(OwnerRig::MixedOptions(2));
  MemoryBudget small(100);
  rig.owner_options(0).budget = &small;
  rig.owner_options(0).snapshot_memory_bytes = 1000;
  const std::vector<absl::Status> started = rig.Start();
  for (const absl::Status& status : started) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("the snapshots of rank 0 needs 1000 bytes"));
  }
  EXPECT_THAT(std::string(started[1].message()), HasSubstr("reported by rank 0"));
}

// Notes what comes and refuses it.
class NotingCoordinator final : public CoordinatorClient {
 public:
  absl::StatusOr<std::unique_ptr<MemberSession>> Join(const JoinRequest& request, absl::Time,
                                                      Cancellation*) override {
    ids.push_back(request.request_id);
    return absl::UnavailableError("refused");
  }
  absl::StatusOr<std::vector<std::string>> GetOwners(const std::string&, absl::Time) override {
    return std::vector<std::string>();
  }
  absl::StatusOr<JobStatus> GetStatus(absl::Time) override { return JobStatus(); }

  std::vector<std::string> ids;
};

// In a container each trainer has pid 1, and its first join is its first: neither tells a process
// that was started again from a retry.
TEST(ShardOwnerJoin, EachAttempt_HasARandomId) {
  NotingCoordinator coordinator;
  ShardOwner::Options options = OwnerRig::MixedOptions(1).owner;
  options.coordinator = &coordinator;
  EXPECT_FALSE(ShardOwner::Start(options).ok());
  EXPECT_FALSE(ShardOwner::Start(options).ok());
  ASSERT_EQ(coordinator.ids.size(), 2u);
  EXPECT_NE(coordinator.ids[0], coordinator.ids[1]);
  for (const std::string& id : coordinator.ids) {
    EXPECT_EQ(id.size(), 32u) << id;
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
  }
}

}  // namespace
}  // namespace optshard::testing
