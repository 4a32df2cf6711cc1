// Shard servers of one job on several nodes that do not end at the same moment.
#include <memory>
#include <string>
#include <thread>

#include "common/clock.h"
#include "common/dataplane/host_plane.h"
#include "common/errors.h"
#include "common/membership/membership.h"
#include "gtest/gtest.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/local_coordinator.h"

namespace optshard {
namespace {

using testing::Await;
using testing::NodeRig;
using testing::NodeTrainer;

absl::Time Now() { return Clock::Monotonic().Now(); }

// Sooner than a server that closes its planes would give up waiting for the others.
constexpr absl::Duration kAtOnce = absl::Seconds(1);
constexpr absl::Duration kPrompt = absl::Seconds(5);

// Two servers, with a rank each.
class NodeDeparture : public ::testing::TestWithParam<HostPlaneKind> {
 protected:
  NodeDeparture() {
    for (const Rank rank : {0, 1}) {
      NodeRig::Options options;
      options.world_size = 2;
      options.owners.ranks = {rank};
      options.owners.coordinator = &coordinator_;
      options.owners.plane = GetParam();
      rigs_[rank] = std::make_unique<NodeRig>(options);
    }
    std::thread second([this] { trainers_[1] = StartTrainer(1); });
    trainers_[0] = StartTrainer(0);
    second.join();
  }

  void SetUp() override {
    ASSERT_TRUE(trainers_[0] != nullptr && trainers_[1] != nullptr);
    std::thread second([this] { EXPECT_TRUE(trainers_[1]->StepUntil(2).ok()); });
    EXPECT_TRUE(trainers_[0]->StepUntil(2).ok());
    second.join();
  }

  std::unique_ptr<NodeTrainer> StartTrainer(Rank rank) {
    auto started = NodeTrainer::Start(rigs_[rank]->TrainerOptions(rank));
    EXPECT_TRUE(started.ok()) << started.status();
    return started.ok() ? *std::move(started) : nullptr;
  }

  void EndTrainer(Rank rank) { EXPECT_TRUE(trainers_[rank]->link().Stop(kPrompt).ok()); }

  GroupStatus Group() {
    const absl::StatusOr<JobStatus> status = coordinator_.GetStatus(Now() + kPrompt);
    EXPECT_TRUE(status.ok() && !status->groups.empty()) << status.status();
    return status.ok() && !status->groups.empty() ? status->groups[0] : GroupStatus();
  }

  bool AwaitOutcome(Rank rank, StepOutcome outcome) {
    return Await([&] { return Group().members[rank].progress.outcome == outcome; });
  }

  void DrainsAtOnce(Rank rank) {
    const absl::Time start = Now();
    EXPECT_TRUE(rigs_[rank]->Drain(absl::Seconds(20)));
    EXPECT_LT(Now() - start, kAtOnce) << "rank " << rank;
  }

  LocalCoordinator coordinator_{2};
  std::unique_ptr<NodeRig> rigs_[2];
  std::unique_ptr<NodeTrainer> trainers_[2];
};

TEST_P(NodeDeparture, AfterTheLastStep_IsNoLoss_ToARankThatRefuses) {
  EndTrainer(1);
  ASSERT_TRUE(AwaitOutcome(1, StepOutcome::kRefusing));
  // Its rank has not come to that refusal, and does not any more.
  DrainsAtOnce(0);
  ASSERT_TRUE(AwaitOutcome(1, StepOutcome::kIdle));
  EXPECT_EQ(Group().state, GroupState::kActive) << Group().failure;
  DrainsAtOnce(1);
  EXPECT_EQ(Group().state, GroupState::kFinished) << Group().failure;
}

TEST_P(NodeDeparture, WhereAllTrainersHaveEnded_IsNoLoss_WhicheverServerEndsFirst) {
  EndTrainer(0);
  EndTrainer(1);
  std::thread second([this] { DrainsAtOnce(1); });
  DrainsAtOnce(0);
  second.join();
  EXPECT_EQ(Group().state, GroupState::kFinished) << Group().failure;
}

TEST_P(NodeDeparture, WhileAnotherTrainerSteps_IsTold_AtOnce) {
  absl::Status told;
  absl::Time told_at;
  std::thread stepping([&] {
    told = trainers_[1]->Step().status();
    told_at = Now();
  });
  EXPECT_TRUE(AwaitOutcome(1, StepOutcome::kInStep));
  const absl::Time start = Now();
  EXPECT_TRUE(rigs_[0]->Drain(absl::Seconds(20)));
  stepping.join();
  EXPECT_LT(told_at - start, kAtOnce);
  EXPECT_EQ(errors::RanksOf(told), std::vector<Rank>{0}) << told;
}

TEST_P(NodeDeparture, ThatARefusingRankHasSeen_IsTold_ToTheSuccessorOfItsTrainer) {
  EndTrainer(1);
  ASSERT_TRUE(AwaitOutcome(1, StepOutcome::kRefusing));
  DrainsAtOnce(0);
  ASSERT_TRUE(AwaitOutcome(1, StepOutcome::kIdle));
  trainers_[1] = StartTrainer(1);
  ASSERT_NE(trainers_[1], nullptr);
  EXPECT_EQ(trainers_[1]->finished(), 2u);
  const absl::Time start = Now();
  const absl::Status told = trainers_[1]->Step().status();
  EXPECT_LT(Now() - start, kAtOnce);
  EXPECT_TRUE(errors::IsPeerLost(told)) << told;
  EXPECT_EQ(errors::RanksOf(told), std::vector<Rank>{0}) << told;
}

INSTANTIATE_TEST_SUITE_P(Planes, NodeDeparture,
                         ::testing::Values(HostPlaneKind::kShm, HostPlaneKind::kGloo),
                         [](const auto& info) {
                           return info.param == HostPlaneKind::kShm ? "Shm" : "Gloo";
                         });

}  // namespace
}  // namespace optshard
