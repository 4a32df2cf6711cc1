// A shard server that dies while it changes what it has in memory, and the one that comes after it.
#include <fcntl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "common/link/memory_budget.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/node/descriptor_keeper.h"
#include "server/node/rank_memory.h"
#include "server/shard/state/shard_ledger.h"
#include "server/shard/state/state_access.h"
#include "tests/server/node/host_memory.h"
#include "tests/server/node/kept_server.h"
#include "tests/server/node/node_rig.h"
#include "tests/server/node/node_takeover_fixture.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;

TEST(NodeTakeoverOfALivingTrainer, KeepsTheStateThatWasSet_UnlessAStepIsTorn) {
  KeptServer server([](int life, std::vector<KeptUnit>* units) {
    if (life != 3) return;
    // As it would be, had the second one died while it applied step 2.
    MemoryBudget budget;
    std::vector<UniqueFd> same;
    for (const UniqueFd& fd : units->at(0).descriptors) {
      same.emplace_back(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
    }
    const std::shared_ptr<RankMemory> memory = AdoptOnHost(std::move(same), budget).value();
    ShardLedger(memory->Shard().at(0).ledger, 0, 0, 0).SetProgress({1, StepOutcome::kTorn});
  });
  const std::unique_ptr<NodeTrainer> trainer =
      NodeTrainer::Start(NodeTrainer::DefaultOptions(server.address(), 0, 1)).value();
  AttachedOwner& link = trainer->link();
  ASSERT_TRUE(trainer->StepUntil(1).ok());
  double value = 0;
  const auto read = [&](absl::Duration timeout) {
    const absl::StatusOr<StateAccess*> state = link.state(timeout);
    return state.ok() ? (*state)->Read(0, 0, 0, absl::MakeSpan(&value, 1)) : state.status();
  };
  const auto read_until_it_is_back = [&] {
    absl::Status status;
    EXPECT_TRUE(Await([&] {
      status = read(absl::Seconds(20));
      return !errors::IsOwnerAway(status);
    }));
    return status;
  };
  ASSERT_TRUE(link.state(absl::Seconds(20)).value()->Write(0, 0, 0, {0.25}).ok());
  server.Kill();
  const absl::Status away = read(absl::Milliseconds(10));
  EXPECT_TRUE(errors::IsOwnerAway(away)) << away;
  EXPECT_TRUE(link.failure().ok());
  server.Return();
  const absl::Status back = read_until_it_is_back();
  EXPECT_TRUE(back.ok()) << back;
  EXPECT_EQ(value, 0.25);

  server.Kill();
  server.Return();
  for (int call = 0; call < 2; ++call) {
    const absl::Status torn = read_until_it_is_back();
    EXPECT_TRUE(absl::IsDataLoss(torn)) << torn;
    EXPECT_THAT(std::string(torn.message()), HasSubstr("load a checkpoint"));
  }
}

// Nobody steps from it, nor reads it; a checkpoint takes its place.
TEST_F(NodeTakeover, OfATornStep_IsNotGivenOutAndWaitsForACheckpoint) {
  const std::vector<StateShare> shares = StepAndDie(2);
  // As it would be, had the server died while it applied step 3.
  ShardLedger(Kept(1)->Shard().at(0).ledger, 0, 0, 0).SetProgress({2, StepOutcome::kTorn});

  auto second = StartServer({0, 1}, keeper_.Units());
  std::vector<std::unique_ptr<NodeTrainer>> trainers(kWorldSize);
  second->OnEveryRank([&](Rank rank) {
    trainers[rank] = NodeTrainer::Start(second->TrainerOptions(rank)).value();
    AttachedOwner& link = trainers[rank]->link();
    const absl::Status refused = StepOnceNobodyIsAway(*trainers[rank]);
    EXPECT_TRUE(errors::IsTornStep(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("step 3 is torn"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("rank 1 brings"));
    double value = 0;
    StateAccess* const state = *link.state(absl::Seconds(20));
    const absl::Status read = state->Read(0, 0, 0, absl::MakeSpan(&value, 1));
    // The other rank does not own that element.
    EXPECT_TRUE(rank == 1 ? absl::IsDataLoss(read) : absl::IsInvalidArgument(read)) << read;
    // Nothing was replaced yet, and the parameters count as torn, too.
    EXPECT_TRUE(absl::IsDataLoss(state->BeginStaging(Replacing::kState)) || rank == 0);
    EXPECT_TRUE(absl::IsAborted(
        trainers[rank]->FinishLoading({2, trainers[rank]->hyperparameters(), "lost"})));
    const absl::Status staged = StageShare(*state, shares[rank]);
    EXPECT_TRUE(staged.ok()) << staged;
    const absl::Status loaded =
        trainers[rank]->FinishLoading({2, trainers[rank]->hyperparameters(), "blob"});
    EXPECT_TRUE(loaded.ok()) << loaded;
    EXPECT_EQ(link.finished_step(), 2u);
    const absl::Status stepped = trainers[rank]->StepUntil(4);
    EXPECT_TRUE(stepped.ok()) << stepped;
  });
  EXPECT_TRUE(second->owners().Ready());
}

// The server was killed when all had loaded, and before it had told the trainers. One that asks
// again knows it without the others, who may step already.
TEST_F(NodeTakeover, OfALoadThatAllHadEnded_SaysSoWhenItIsAskedAgain) {
  constexpr uint64_t kEnded = 7;
  const std::vector<StateShare> shares = StepAndDie(2);
  for (const Rank rank : {0, 1}) Kept(rank)->record().SetLoadToken(kEnded);

  auto second = StartServer({0, 1}, keeper_.Units());
  const auto trainers = second->StartAll();
  const std::vector<Hyperparameters> given = trainers[0]->hyperparameters();
  const absl::Status ended = trainers[0]->FinishLoading({2, given, "", kEnded});
  EXPECT_TRUE(ended.ok()) << ended;
  EXPECT_EQ(trainers[0]->link().finished_step(), 2u);
  // Other loads, one of them of the same token.
  for (const OwnerLink::LoadedStep& other : {OwnerLink::LoadedStep{2, given, "", kEnded + 1},
                                             OwnerLink::LoadedStep{1, given, "", kEnded}}) {
    second->OnEveryRank([&](Rank rank) {
      const absl::Status aborted = trainers[rank]->FinishLoading(other);
      EXPECT_TRUE(absl::IsAborted(aborted)) << aborted;
    });
  }
  second->OnEveryRank([&](Rank rank) {
    const absl::Status stepped = trainers[rank]->StepUntil(4);
    EXPECT_TRUE(stepped.ok()) << stepped;
    EXPECT_EQ(Differences(*trainers[rank], kWorldSize), "");
    // One that all end now is known from then on, too.
    const OwnerLink::LoadedStep load = {2, given, "", kEnded + 2};
    const absl::Status staged =
        StageShare(*trainers[rank]->link().state(absl::Seconds(20)).value(), shares[rank]);
    EXPECT_TRUE(staged.ok()) << staged;
    const absl::Status loaded = trainers[rank]->FinishLoading(load);
    EXPECT_TRUE(loaded.ok()) << loaded;
  });
  const absl::Status again = trainers[1]->FinishLoading({2, given, "", kEnded + 2});
  EXPECT_TRUE(again.ok()) << again;
}

// It had begun to replace state, which is of no step.
TEST_F(NodeTakeover, OfALoadThatWasNotEnded_IsNotTakenForOneThatWas) {
  constexpr uint64_t kBegun = 7;
  StepAndDie(2);
  for (const Rank rank : {0, 1}) Kept(rank)->record().SetLoadToken(kBegun);
  ShardLedger(Kept(1)->Shard().at(0).ledger, 0, 0, 0).SetReplacing(Replacing::kAll);

  auto second = StartServer({0, 1}, keeper_.Units());
  const auto trainers = second->StartAll();
  for (const StepNumber step : {0, 2}) {
    second->OnEveryRank([&](Rank rank) {
      const absl::Status aborted =
          trainers[rank]->FinishLoading({step, trainers[rank]->hyperparameters(), "", kBegun});
      EXPECT_TRUE(absl::IsAborted(aborted)) << aborted;
    });
  }
}

// Rank 1 had taken a state dict in part, and its server was killed when only rank 0 had begun to
// take a checkpoint.
TEST_F(NodeTakeover, OfACheckpointTakenInPartAndAStateDictTakenInPart_AllWaitForACheckpoint) {
  StepAndDie(2);
  ShardLedger(Kept(0)->Shard().at(0).ledger, 0, 0, 0).SetReplacing(Replacing::kAll);
  ShardLedger(Kept(1)->Shard().at(0).ledger, 0, 0, 0).SetReplacing(Replacing::kState);

  auto second = StartServer({0, 1}, keeper_.Units());
  std::vector<std::unique_ptr<NodeTrainer>> trainers(kWorldSize);
  second->OnEveryRank([&](Rank rank) {
    trainers[rank] = NodeTrainer::Start(second->TrainerOptions(rank)).value();
    const absl::Status refused = StepOnceNobodyIsAway(*trainers[rank]);
    EXPECT_TRUE(errors::IsTornStep(refused)) << refused;
    StateAccess* const state = *trainers[rank]->link().state(absl::Seconds(20));
    const absl::Status replacing = state->BeginStaging(Replacing::kState);
    EXPECT_TRUE(absl::IsDataLoss(replacing)) << "rank " << rank << ": " << replacing;
  });
}

// Nobody steps from a mixture, nor reads it.
TEST_F(NodeTakeover, OfStateThatWasReplacedInPart_WaitsUntilItIsReplacedAsAWhole) {
  const std::vector<StateShare> shares = StepAndDie(2);
  // As it would be, had the server died while it replaced the state.
  ShardLedger(Kept(1)->Shard().at(0).ledger, 0, 0, 0).SetReplacing(Replacing::kState);

  auto second = StartServer({0, 1}, keeper_.Units());
  std::vector<std::unique_ptr<NodeTrainer>> trainers(kWorldSize);
  second->OnEveryRank([&](Rank rank) {
    trainers[rank] = NodeTrainer::Start(second->TrainerOptions(rank)).value();
    AttachedOwner& link = trainers[rank]->link();
    const absl::Status refused = StepOnceNobodyIsAway(*trainers[rank]);
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("rank 1: its optimizer state is that of no step: it was replaced only"));
    StateAccess* const state = *link.state(absl::Seconds(20));
    const absl::Status staged = StageShare(*state, shares[rank], Replacing::kState);
    EXPECT_TRUE(staged.ok()) << staged;
    const absl::Status replaced = link.ReplaceState(absl::Seconds(20));
    EXPECT_TRUE(replaced.ok()) << replaced;
    EXPECT_TRUE(trainers[rank]->ReadShare() == shares[rank]);
    const absl::Status stepped = trainers[rank]->StepUntil(4);
    EXPECT_TRUE(stepped.ok()) << stepped;
    EXPECT_EQ(Differences(*trainers[rank], 2), "");
  });
}

TEST_F(NodeTakeover, OfAStepThatAllHadApplied_CountsIt) {
  StepAndDie(4);
  // The server died when all had been done, and nobody had heard of it.
  for (const Rank rank : {0, 1}) {
    ShardLedger(Kept(rank)->Shard().at(0).ledger, 0, 0, 0).SetProgress({3, StepOutcome::kApplied});
  }

  auto second = StartServer({0, 1}, keeper_.Units());
  const auto trainers = second->StartAll();
  second->OnEveryRank([&](Rank rank) {
    EXPECT_EQ(trainers[rank]->finished(), 4u);
    const absl::Status stepped = trainers[rank]->StepUntil(6);
    EXPECT_TRUE(stepped.ok()) << stepped;
    EXPECT_EQ(Differences(*trainers[rank], kWorldSize), "");
  });
}

}  // namespace
}  // namespace optshard::testing
