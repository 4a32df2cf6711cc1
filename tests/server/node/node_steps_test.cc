// Steps through the doorbell: the bits, what comes back, what is refused.
#include <memory>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/step_info.h"
#include "gtest/gtest.h"
#include "server/shard/engine/step_input.h"
#include "tests/server/node/node_rig.h"

namespace optshard {
namespace {

using testing::Differences;
using testing::NodeRig;
using testing::NodeTrainer;

TEST(NodeSteps_OneToFourRanks_GiveTheBits, OfOneProcessThatKeepsEverything) {
  for (const int world_size : {1, 2, 3, 4}) {
    NodeRig rig(world_size);
    auto trainers = rig.StartAll();
    for (StepNumber step = 1; step <= 5; ++step) {
      rig.OnEveryRank([&](Rank rank) {
        const absl::StatusOr<StepInfo> info = trainers[rank]->Step();
        ASSERT_TRUE(info.ok()) << info.status();
        EXPECT_EQ(info->step, step);
      });
      for (const auto& trainer : trainers) EXPECT_EQ(Differences(*trainer, world_size), "");
    }
    EXPECT_TRUE(rig.owners().Ready());
  }
}

TEST(NodeSteps_OverGloo_GiveTheSameBits, InTheSegments) {
  NodeRig::Options options;
  options.world_size = 3;
  options.owners.plane = HostPlaneKind::kGloo;
  NodeRig rig(options);
  auto trainers = rig.StartAll();
  rig.OnEveryRank([&](Rank rank) {
    const absl::Status stepped = trainers[rank]->StepUntil(3);
    EXPECT_TRUE(stepped.ok()) << stepped;
  });
  for (const auto& trainer : trainers) EXPECT_EQ(Differences(*trainer, 3), "");
}

TEST(NodeSteps_SharedParameters_AreOneCopy, WithTheSameBits) {
  NodeRig rig(3);
  std::vector<std::unique_ptr<NodeTrainer>> trainers(3);
  rig.OnEveryRank([&](Rank rank) {
    AttachedOwner::Options options = rig.TrainerOptions(rank);
    options.spec.share_parameters = true;
    absl::StatusOr<std::unique_ptr<NodeTrainer>> started = NodeTrainer::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    trainers[rank] = *std::move(started);
    const absl::Status stepped = trainers[rank]->StepUntil(4);
    EXPECT_TRUE(stepped.ok()) << stepped;
  });
  for (const auto& trainer : trainers) EXPECT_EQ(Differences(*trainer, 3), "");
  // What one writes is what the others read.
  testing::Store({0.5}, trainers[2]->link().replica()[0].parameters);
  EXPECT_EQ(testing::Load(trainers[0]->link().replica()[0].parameters, 1), testing::Values{0.5});
}

TEST(NodeSteps_DifferentHyperparameters_AreRefusedNamingTheOption, OnEveryRank) {
  NodeRig rig(2);
  auto trainers = rig.StartAll();
  trainers[1]->SetLearningRate(0.5);
  rig.OnEveryRank([&](Rank rank) {
    const absl::Status refused = trainers[rank]->Step().status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_NE(refused.message().find("group 0: lr is 0.01 on rank 0 but 0.5 on rank 1"),
              absl::string_view::npos)
        << refused;
    EXPECT_TRUE(trainers[rank]->link().failure().ok());
  });
  trainers[1]->SetLearningRate(0.01);
  rig.OnEveryRank([&](Rank rank) {
    const absl::Status stepped = trainers[rank]->StepUntil(2);
    EXPECT_TRUE(stepped.ok()) << stepped;
  });
  for (const auto& trainer : trainers) EXPECT_EQ(Differences(*trainer, 2), "");
}

TEST(NodeSteps_HyperparametersOutOfRange_LetTheOthersGoOn, OnceTheyAreMended) {
  NodeRig rig(2);
  auto trainers = rig.StartAll();
  trainers[1]->SetLearningRate(-1);
  rig.OnEveryRank([&](Rank rank) {
    const absl::Status refused = trainers[rank]->Step().status();
    if (rank == 1) {
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
      EXPECT_NE(refused.message().find("option \"lr\" is -1"), absl::string_view::npos) << refused;
    } else {
      EXPECT_TRUE(errors::IsTrainerGone(refused)) << refused;
    }
  });
  trainers[1]->SetLearningRate(0.01);
  rig.OnEveryRank([&](Rank rank) { EXPECT_TRUE(trainers[rank]->StepUntil(2).ok()); });
  for (const auto& trainer : trainers) EXPECT_EQ(Differences(*trainer, 2), "");
}

// Over memory that all ranks share nothing precedes the vote, which may have arrived.
TEST(NodeSteps_LivingTrainerThatDoesNotStep_IsNamedAfterTheTimeout, AndNothingChangedHere) {
  NodeRig rig(2);
  auto trainers = rig.StartAll();
  const absl::Status late = trainers[0]->Step(absl::Milliseconds(30)).status();
  EXPECT_TRUE(errors::IsStepInDoubt(late)) << late;
  EXPECT_NE(late.message().find("rank 1's process is alive"), absl::string_view::npos) << late;
  EXPECT_EQ(Differences(*trainers[0], 2), "");
}

TEST(NodeSteps_TensorsThatLieElsewhere_AreRefused, BeforeAnythingIsAsked) {
  NodeRig rig(1);
  auto trainers = rig.StartAll();
  std::vector<float> elsewhere(100000);
  std::vector<ReplicaTensor> tensors(trainers[0]->space().parameter_count());
  for (ReplicaTensor& tensor : tensors) tensor.parameter = elsewhere.data();
  StepInput input;
  input.replica = tensors;
  input.timeout = absl::Seconds(5);
  EXPECT_TRUE(absl::IsInvalidArgument(trainers[0]->link().Step(input).status()));
  EXPECT_TRUE(trainers[0]->StepUntil(1).ok());
}

TEST(NodeSteps_VerifyReplicas, FindTheElementThatATrainerHasChanged) {
  NodeRig rig(3);
  auto trainers = rig.StartAll();
  rig.OnEveryRank([&](Rank rank) {
    EXPECT_TRUE(trainers[rank]->Step().ok());
    const absl::Status same = trainers[rank]->VerifyReplicas();
    EXPECT_TRUE(same.ok()) << same;
    if (rank == 1) trainers[rank]->FlipBit(1);
    const absl::Status different = trainers[rank]->VerifyReplicas();
    EXPECT_TRUE(errors::IsRanksDisagree(different)) << different;
    EXPECT_EQ(errors::RanksOf(different), std::vector<Rank>{1});
    EXPECT_NE(different.message().find("parameter 1 "), absl::string_view::npos) << different;
    if (rank == 1) trainers[rank]->FlipBit(1);
    EXPECT_TRUE(trainers[rank]->Step().ok());
  });
  for (const auto& trainer : trainers) EXPECT_EQ(Differences(*trainer, 3), "");
}

TEST(NodeSteps_VerifyReplicasWhileATrainerIsAway, AreToldTrainerGone) {
  NodeRig rig(2);
  auto trainers = rig.StartAll();
  trainers[1].reset();
  const absl::Status away = trainers[0]->VerifyReplicas();
  EXPECT_TRUE(errors::IsTrainerGone(away)) << away;
  rig.OnEveryRank([&](Rank rank) {
    if (rank == 1) trainers[1] = NodeTrainer::Start(rig.TrainerOptions(1)).value();
    EXPECT_TRUE(trainers[rank]->StepUntil(2).ok());
  });
  for (const auto& trainer : trainers) EXPECT_EQ(Differences(*trainer, 2), "");
}

}  // namespace
}  // namespace optshard
