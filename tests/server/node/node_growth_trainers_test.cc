// Param groups that are added at shard servers, and trainers that end meanwhile, or go on with
// another server.
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/node/kept_server.h"
#include "tests/server/node/node_rig.h"

namespace optshard {
namespace {

using testing::Differences;
using ::testing::HasSubstr;
using testing::KeptServer;
using testing::NodeRig;
using testing::NodeTrainer;

constexpr int kWorldSize = 2;
using Trainers = std::vector<std::unique_ptr<NodeTrainer>>;

void OnEvery(NodeRig& server, Trainers& trainers,
             const std::function<absl::Status(NodeTrainer&)>& call) {
  server.OnEveryRank(
      [&](Rank rank) { EXPECT_EQ(call(*trainers[rank]), absl::OkStatus()) << rank; });
}

void Step(NodeRig& server, Trainers& trainers, StepNumber last) {
  OnEvery(server, trainers, [last](NodeTrainer& trainer) { return trainer.StepUntil(last); });
}

void Add(NodeRig& server, Trainers& trainers) {
  OnEvery(server, trainers, [](NodeTrainer& trainer) { return trainer.AddGroup(); });
}

void ExpectBits(const Trainers& trainers, const std::vector<StepNumber>& added) {
  for (const auto& trainer : trainers) EXPECT_EQ(Differences(*trainer, kWorldSize, added), "");
}

// The same trainer attaches to the server's successor, and has its groups and their bits there.
TEST(NodeGrowthTrainers, TheServerIsKilled_TheTrainerGoesOnWithItsSuccessor) {
  KeptServer server;
  const std::unique_ptr<NodeTrainer> trainer =
      NodeTrainer::Start(NodeTrainer::DefaultOptions(server.address(), 0, 1)).value();
  ASSERT_EQ(trainer->StepUntil(1), absl::OkStatus());
  ASSERT_EQ(trainer->AddGroup(), absl::OkStatus());
  server.Kill();
  server.Return();
  ASSERT_EQ(trainer->StepUntil(3), absl::OkStatus());
  EXPECT_EQ(Differences(*trainer, 1, {1}), "");
  server.Kill();
  server.Return();
  absl::Status added;
  EXPECT_TRUE(testing::Await([&] {
    added = trainer->AddGroup();
    return !errors::IsOwnerAway(added);
  }));
  ASSERT_EQ(added, absl::OkStatus());
  ASSERT_EQ(trainer->StepUntil(5), absl::OkStatus());
  EXPECT_EQ(Differences(*trainer, 1, {1, 3}), "");
}

// As where it cannot say any more that all ranks have the values: a trainer that asks again is
// answered, while the other one steps.
TEST(NodeGrowthTrainers, TheServerIsKilledBeforeItSaysThatThereAreValues_ItsSuccessorDoes) {
  KeptServer server([](int, auto*) {}, kWorldSize);
  Trainers trainers(kWorldSize);
  const auto on_both = [](const std::function<void(Rank)>& work) {
    std::thread other([&work] { work(1); });
    work(0);
    other.join();
  };
  on_both([&](Rank rank) {
    trainers[rank] =
        *NodeTrainer::Start(NodeTrainer::DefaultOptions(server.address(), rank, kWorldSize));
    EXPECT_EQ(trainers[rank]->StepUntil(1), absl::OkStatus());
    EXPECT_EQ(trainers[rank]->AddGroup(), absl::OkStatus());
  });
  server.Kill();
  server.Return();
  on_both([&](Rank rank) {
    if (rank == 1) {
      absl::Status given;
      EXPECT_TRUE(testing::Await([&] {
        given = trainers[1]->GiveAddedValues();
        return !errors::IsOwnerAway(given);
      }));
      EXPECT_EQ(given, absl::OkStatus());
    }
    EXPECT_EQ(trainers[rank]->StepUntil(3), absl::OkStatus());
  });
  for (const auto& trainer : trainers) EXPECT_EQ(Differences(*trainer, kWorldSize, {1}), "");
}

// Before its call, for which the others wait.
TEST(NodeGrowthTrainers, ATrainerEndsBeforeItsCall_TheOthersAreToldAndItsSuccessorMakesIt) {
  NodeRig server(kWorldSize);
  Trainers trainers = server.StartAll();
  Step(server, trainers, 1);
  trainers[1].reset();
  const absl::Status without = trainers[0]->AddGroup();
  EXPECT_TRUE(errors::IsTrainerGone(without)) << without;
  EXPECT_EQ(errors::RanksOf(without), std::vector<Rank>({1}));
  server.OnEveryRank([&](Rank rank) {
    if (rank == 1) trainers[1] = *NodeTrainer::Start(server.TrainerOptions(1));
    absl::Status added;
    EXPECT_TRUE(testing::Await([&] {
      added = trainers[rank]->AddGroup();
      return !errors::IsTrainerGone(added);
    }));
    EXPECT_EQ(added, absl::OkStatus());
    EXPECT_EQ(trainers[rank]->StepUntil(3), absl::OkStatus());
  });
  ExpectBits(trainers, {1});
}

TEST(NodeGrowthTrainers, ATrainerEnds_ItsSuccessorAddsWhatIsThereAndNothingElse) {
  NodeRig server(kWorldSize);
  Trainers trainers = server.StartAll();
  Add(server, trainers);
  Step(server, trainers, 1);
  trainers[1].reset();
  server.OnEveryRank([&](Rank rank) {
    if (rank == 0) {
      EXPECT_EQ(trainers[0]->StepUntil(2), absl::OkStatus());
      return;
    }
    trainers[1] = *NodeTrainer::Start(server.TrainerOptions(1));
    OptimizerSpec other = testing::SpecOfNodes(kWorldSize, 1);
    other.rules.back().name = "sgd";
    const absl::Status refused =
        trainers[1]->link().AddGroups(other, {}, absl::OkStatus(), absl::Seconds(20));
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("nadam"));
    EXPECT_EQ(trainers[1]->AddGroup(), absl::OkStatus());
    EXPECT_EQ(trainers[1]->StepUntil(2), absl::OkStatus());
  });
  Step(server, trainers, 3);
  ExpectBits(trainers, {0});
}

TEST(NodeGrowthTrainers, RankZerosTrainerEndsBeforeThereAreValues_TheOthersAreToldAtOnce) {
  NodeRig server(kWorldSize);
  Trainers trainers = server.StartAll();
  Step(server, trainers, 1);
  server.OnEveryRank([&](Rank rank) {
    if (rank == 0) {
      EXPECT_EQ(trainers[0]->AddGroupWithoutValues(), absl::OkStatus());
      trainers[0].reset();
      return;
    }
    const absl::Status without = trainers[rank]->AddGroup();
    EXPECT_TRUE(errors::IsTrainerGone(without)) << without;
  });
  server.OnEveryRank([&](Rank rank) {
    if (rank == 0) {
      trainers[0] = *NodeTrainer::Start(server.TrainerOptions(0));
      EXPECT_EQ(trainers[0]->AddGroup(), absl::OkStatus());
    }
    EXPECT_EQ(trainers[rank]->StepUntil(2), absl::OkStatus());
  });
  ExpectBits(trainers, {1});
}

// Whatever its last trainer asked for last, a rank that has got the values alone knows it.
TEST(NodeGrowthTrainers, ATrainerEndsBeforeThereAreValues_ItsRankGetsThemAndItsSuccessorHasThem) {
  NodeRig server(kWorldSize);
  Trainers trainers = server.StartAll();
  OnEvery(server, trainers, [](NodeTrainer& trainer) { return trainer.VerifyReplicas(); });
  server.OnEveryRank([&](Rank rank) {
    if (rank == 0) {
      EXPECT_EQ(trainers[0]->AddGroup(), absl::OkStatus());
      return;
    }
    EXPECT_EQ(trainers[rank]->AddGroupWithoutValues(), absl::OkStatus());
    trainers[rank].reset();
  });
  server.OnEveryRank([&](Rank rank) {
    if (rank == 1) {
      trainers[1] = *NodeTrainer::Start(server.TrainerOptions(1));
      EXPECT_EQ(trainers[1]->AddGroup(), absl::OkStatus());
      EXPECT_TRUE(trainers[1]->link().resumes());
    }
    EXPECT_EQ(trainers[rank]->StepUntil(2), absl::OkStatus());
  });
  ExpectBits(trainers, {0});
}

}  // namespace
}  // namespace optshard
