// A shard server that dies, and the one that takes over what it had in memory.
#include <fcntl.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/link/process_stat.h"
#include "common/step_info.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/node/descriptor_keeper.h"
#include "server/node/rank_memory.h"
#include "server/shard/state/shard_ledger.h"
#include "server/shard/state/state_access.h"
#include "tests/server/node/kept_server.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/local_coordinator.h"

namespace optshard {
namespace {

using testing::Differences;
using testing::FakeKeeper;
using ::testing::HasSubstr;
using testing::NodeRig;
using testing::NodeTrainer;
using ::testing::SizeIs;

// Servers of one job that come one after the other, or side by side, and what keeps their memory.
class NodeTakeover : public ::testing::Test {
 protected:
  std::unique_ptr<NodeRig> StartServer(const std::set<Rank>& ranks, std::vector<KeptUnit> units) {
    return StartServer(kWorldSize, &coordinator_, ranks, std::move(units));
  }
  std::unique_ptr<NodeRig> StartServer(int world_size, LocalCoordinator* coordinator,
                                       const std::set<Rank>& ranks, std::vector<KeptUnit> units) {
    NodeRig::Options options;
    options.world_size = world_size;
    options.owners.ranks = ranks;
    options.owners.coordinator = coordinator;
    options.owners.keeper = &keeper_;
    return std::make_unique<NodeRig>(std::move(options), std::move(units));
  }

  // Trainers of all ranks, with the options that `change` leaves.
  static std::vector<std::unique_ptr<NodeTrainer>> StartAll(
      NodeRig& server, const std::function<void(AttachedOwner::Options*)>& change) {
    std::vector<std::unique_ptr<NodeTrainer>> trainers(kWorldSize);
    server.OnEveryRank([&](Rank rank) {
      AttachedOwner::Options options = server.TrainerOptions(rank);
      change(&options);
      auto started = NodeTrainer::Start(options);
      ASSERT_TRUE(started.ok()) << "rank " << rank << ": " << started.status();
      trainers[rank] = *std::move(started);
    });
    return trainers;
  }

  // What is kept of the rank, as its next server will find it.
  std::shared_ptr<RankMemory> Kept(Rank rank) {
    for (KeptUnit& unit : keeper_.Units()) {
      std::shared_ptr<RankMemory> memory = *RankMemory::Adopt(std::move(unit.descriptors), budget_);
      if (memory->first_request().rank == rank) return memory;
    }
    ADD_FAILURE() << "nothing is kept of rank " << rank;
    return nullptr;
  }

  static constexpr int kWorldSize = 2;
  FakeKeeper keeper_;
  MemoryBudget budget_;
  LocalCoordinator coordinator_{kWorldSize};
};

TEST(NodeTakeoverOfALivingTrainer, KeepsTheStateThatWasSet_UnlessAStepIsTorn) {
  testing::KeptServer server([](int life, std::vector<KeptUnit>* units) {
    if (life != 3) return;
    // As it would be, had the second one died while it applied step 2.
    MemoryBudget budget;
    std::vector<UniqueFd> same;
    for (const UniqueFd& fd : units->at(0).descriptors) {
      same.emplace_back(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
    }
    const std::shared_ptr<RankMemory> memory = RankMemory::Adopt(std::move(same), budget).value();
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
    EXPECT_TRUE(testing::Await([&] {
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

TEST_F(NodeTakeover, OfAllRanks_GoesOnWithTheirBits) {
  auto first = StartServer({0, 1}, {});
  auto trainers = first->StartAll();
  first->OnEveryRank([&](Rank rank) {
    ASSERT_TRUE(trainers[rank]->link().SetBlob(rank == 0 ? "zero" : "one").ok());
    ASSERT_TRUE(trainers[rank]->StepUntil(3).ok());
  });
  EXPECT_THAT(keeper_.Units(), SizeIs(2));
  trainers.clear();
  first->Die();

  auto second = StartServer({0, 1}, keeper_.Units());
  trainers = second->StartAll();
  second->OnEveryRank([&](Rank rank) {
    EXPECT_TRUE(trainers[rank]->link().resumes());
    EXPECT_EQ(trainers[rank]->finished(), 3u);
    EXPECT_EQ(trainers[rank]->link().blob(), rank == 0 ? "zero" : "one");
    EXPECT_EQ(trainers[rank]->link().incarnation(), 2u);
    EXPECT_EQ(trainers[rank]->link().generation(), 2u);
    const absl::Status stepped = trainers[rank]->StepUntil(6);
    EXPECT_TRUE(stepped.ok()) << stepped;
    EXPECT_EQ(Differences(*trainers[rank], kWorldSize), "");
  });
}

TEST_F(NodeTakeover, AfterSkippedCalls_StillCountsThem) {
  auto first = StartServer({0, 1}, {});
  auto trainers = first->StartAll();
  first->OnEveryRank([&](Rank rank) {
    ASSERT_TRUE(trainers[rank]->StepUntil(1).ok());
    for (int skipped = 0; skipped < 2; ++skipped) {
      const absl::StatusOr<StepInfo> info = trainers[rank]->Skip();
      ASSERT_TRUE(info.ok()) << info.status();
      EXPECT_TRUE(info->skipped);
    }
  });
  trainers.clear();
  first->Die();

  auto second = StartServer({0, 1}, keeper_.Units());
  trainers = second->StartAll();
  for (const Rank rank : {0, 1}) {
    const absl::optional<KeptState> kept = ShardLedger::Read(Kept(rank)->Shard().back().ledger);
    ASSERT_TRUE(kept.has_value());
    EXPECT_EQ(kept->generation, 2u);
    EXPECT_EQ(kept->progress.finished, 1u);
    EXPECT_EQ(kept->progress.skipped, 2u);
  }
  second->OnEveryRank([&](Rank rank) {
    const absl::Status stepped = trainers[rank]->StepUntil(3);
    EXPECT_TRUE(stepped.ok()) << stepped;
    EXPECT_EQ(Differences(*trainers[rank], kWorldSize), "");
  });
}

TEST_F(NodeTakeover, OfOneServerOfTwo_TellsTheOthersTrainers_AndTheyGoOn) {
  auto stays = StartServer({0}, {});
  auto dies = StartServer({1}, {});
  std::vector<std::unique_ptr<NodeTrainer>> trainers(kWorldSize);
  const std::vector<NodeRig*> servers = {stays.get(), dies.get()};
  stays->OnEveryRank([&](Rank rank) {
    auto started = NodeTrainer::Start(servers[rank]->TrainerOptions(rank));
    ASSERT_TRUE(started.ok()) << started.status();
    trainers[rank] = *std::move(started);
    ASSERT_TRUE(trainers[rank]->StepUntil(2).ok());
  });
  trainers[1].reset();
  dies->Die();

  absl::Status away = trainers[0]->Step().status();
  // The server may have refused one more step before it died: its trainer was gone.
  if (errors::IsTrainerGone(away)) away = trainers[0]->Step().status();
  EXPECT_TRUE(errors::IsOwnerAway(away)) << away;
  EXPECT_TRUE(absl::IsUnavailable(away)) << away;
  EXPECT_EQ(errors::RanksOf(away), std::vector<Rank>{1});
  EXPECT_TRUE(trainers[0]->link().failure().ok());

  std::vector<KeptUnit> units = keeper_.Units();
  ASSERT_THAT(units, SizeIs(2));
  units.erase(units.begin());
  auto next = StartServer({1}, std::move(units));
  stays->OnEveryRank([&](Rank rank) {
    if (rank == 1) {
      auto successor = NodeTrainer::Start(next->TrainerOptions(1));
      ASSERT_TRUE(successor.ok()) << successor.status();
      EXPECT_EQ((*successor)->finished(), 2u);
      trainers[1] = *std::move(successor);
    }
    const absl::Status stepped = trainers[rank]->StepUntil(5);
    EXPECT_TRUE(stepped.ok()) << stepped;
    EXPECT_EQ(Differences(*trainers[rank], kWorldSize), "");
  });
  trainers.clear();
}

TEST_F(NodeTakeover, OfTwoOptimizers_GoesOnWithTheBitsOfEach) {
  const std::vector<std::string> names = {"generator", "discriminator"};
  const auto named = [&](size_t n) {
    return [&names, n](AttachedOwner::Options* options) { options->optimizer = names[n]; };
  };
  auto first = StartServer({0, 1}, {});
  std::vector<std::unique_ptr<NodeTrainer>> trainers[2];
  for (size_t n = 0; n < names.size(); ++n) trainers[n] = StartAll(*first, named(n));
  first->OnEveryRank([&](Rank rank) {
    // In turn, as one trainer steps both; not equally often.
    for (StepNumber step = 1; step <= 3; ++step) {
      ASSERT_TRUE(trainers[0][rank]->StepUntil(step).ok());
      ASSERT_TRUE(trainers[1][rank]->StepUntil(2 * step).ok());
    }
  });
  EXPECT_THAT(keeper_.Units(), SizeIs(4));
  for (auto& each : trainers) each.clear();
  first->Die();

  auto second = StartServer({0, 1}, keeper_.Units());
  for (size_t n = 0; n < names.size(); ++n) trainers[n] = StartAll(*second, named(n));
  second->OnEveryRank([&](Rank rank) {
    for (size_t n = 0; n < names.size(); ++n) {
      NodeTrainer& trainer = *trainers[n][rank];
      EXPECT_TRUE(trainer.link().resumes());
      EXPECT_EQ(trainer.finished(), n == 0 ? 3u : 6u);
      const absl::Status stepped = trainer.StepUntil(8);
      EXPECT_TRUE(stepped.ok()) << names[n] << ": " << stepped;
      EXPECT_EQ(Differences(trainer, kWorldSize), "") << names[n];
    }
  });
  EXPECT_TRUE(second->owners().Ready());
}

TEST_F(NodeTakeover, OfSharedParameters_GoesOnWithTheOneCopy) {
  const auto shared = [](AttachedOwner::Options* options) {
    options->spec.share_parameters = true;
  };
  auto first = StartServer({0, 1}, {});
  auto trainers = StartAll(*first, shared);
  first->OnEveryRank([&](Rank rank) { ASSERT_TRUE(trainers[rank]->StepUntil(3).ok()); });
  trainers.clear();
  first->Die();

  auto second = StartServer({0, 1}, keeper_.Units());
  trainers = StartAll(*second, shared);
  second->OnEveryRank([&](Rank rank) {
    EXPECT_TRUE(trainers[rank]->link().resumes());
    EXPECT_EQ(trainers[rank]->finished(), 3u);
    const absl::Status stepped = trainers[rank]->StepUntil(6);
    EXPECT_TRUE(stepped.ok()) << stepped;
  });
  for (const auto& trainer : trainers) EXPECT_EQ(Differences(*trainer, kWorldSize), "");
  // What one writes is what the others read.
  testing::Store({0.5}, trainers[1]->link().replica()[0].parameters);
  EXPECT_EQ(testing::Load(trainers[0]->link().replica()[0].parameters, 1), testing::Values{0.5});
}

TEST_F(NodeTakeover, OfAJobOfOneRank_GoesOnWithItsBits) {
  LocalCoordinator coordinator(1);
  auto first = StartServer(1, &coordinator, {0}, {});
  auto trainers = first->StartAll();
  ASSERT_TRUE(trainers[0]->link().SetBlob("cursor").ok());
  ASSERT_TRUE(trainers[0]->StepUntil(3).ok());
  trainers.clear();
  first->Die();

  auto second = StartServer(1, &coordinator, {0}, keeper_.Units());
  trainers = second->StartAll();
  EXPECT_TRUE(trainers[0]->link().resumes());
  EXPECT_EQ(trainers[0]->finished(), 3u);
  EXPECT_EQ(trainers[0]->link().blob(), "cursor");
  const absl::Status stepped = trainers[0]->StepUntil(6);
  EXPECT_TRUE(stepped.ok()) << stepped;
  EXPECT_EQ(Differences(*trainers[0], 1), "");
}

// It may be in the middle of a long backward, and come back later.
TEST_F(NodeTakeover, OfARankWhoseTrainerLives_KeepsItsPlace) {
  auto first = StartServer({0, 1}, {});
  auto trainers = first->StartAll();
  first->OnEveryRank([&](Rank rank) { ASSERT_TRUE(trainers[rank]->StepUntil(1).ok()); });
  trainers.clear();
  first->Die();
  const pid_t living = getppid();
  const absl::optional<ProcessStat> stat = StatOfProcess(living);
  ASSERT_TRUE(stat.has_value());
  Kept(1)->record().SetTrainer({living, stat->start_ticks});
  Kept(0)->record().SetTrainer({living, stat->start_ticks + 1});  // somebody else by now

  auto second = StartServer({0, 1}, keeper_.Units());
  const absl::Status taken = NodeTrainer::Start(second->TrainerOptions(1)).status();
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  EXPECT_THAT(std::string(taken.message()), HasSubstr(absl::StrCat("process ", living)));
  EXPECT_TRUE(NodeTrainer::Start(second->TrainerOptions(0)).ok());
}

// Nobody steps from it, nor reads it; a checkpoint takes its place.
TEST_F(NodeTakeover, OfATornStep_IsNotGivenOutAndWaitsForACheckpoint) {
  auto first = StartServer({0, 1}, {});
  auto trainers = first->StartAll();
  testing::StateShare shares[kWorldSize];
  first->OnEveryRank([&](Rank rank) {
    ASSERT_TRUE(trainers[rank]->StepUntil(2).ok());
    shares[rank] = trainers[rank]->ReadShare();
  });
  for (auto& trainer : trainers) trainer.reset();
  first->Die();
  // As it would be, had the server died while it applied step 3.
  ShardLedger(Kept(1)->Shard().at(0).ledger, 0, 0, 0).SetProgress({2, StepOutcome::kTorn});

  auto second = StartServer({0, 1}, keeper_.Units());
  second->OnEveryRank([&](Rank rank) {
    trainers[rank] = NodeTrainer::Start(second->TrainerOptions(rank)).value();
    AttachedOwner& link = trainers[rank]->link();
    absl::Status refused;
    do {
      refused = trainers[rank]->Step().status();
    } while (errors::IsTrainerGone(refused));
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
    const absl::Status staged = testing::StageShare(*state, shares[rank]);
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

// Nobody steps from a mixture, nor reads it.
TEST_F(NodeTakeover, OfStateThatWasReplacedInPart_WaitsUntilItIsReplacedAsAWhole) {
  auto first = StartServer({0, 1}, {});
  auto trainers = first->StartAll();
  testing::StateShare shares[kWorldSize];
  first->OnEveryRank([&](Rank rank) {
    ASSERT_TRUE(trainers[rank]->StepUntil(2).ok());
    shares[rank] = trainers[rank]->ReadShare();
  });
  for (auto& trainer : trainers) trainer.reset();
  first->Die();
  // As it would be, had the server died while it replaced the state.
  ShardLedger(Kept(1)->Shard().at(0).ledger, 0, 0, 0).SetReplacing(Replacing::kState);

  auto second = StartServer({0, 1}, keeper_.Units());
  second->OnEveryRank([&](Rank rank) {
    trainers[rank] = NodeTrainer::Start(second->TrainerOptions(rank)).value();
    AttachedOwner& link = trainers[rank]->link();
    absl::Status refused;
    do {
      refused = trainers[rank]->Step().status();
    } while (errors::IsTrainerGone(refused));
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("rank 1: its optimizer state is that of no step: it was replaced only"));
    StateAccess* const state = *link.state(absl::Seconds(20));
    const absl::Status staged = testing::StageShare(*state, shares[rank], Replacing::kState);
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
  auto first = StartServer({0, 1}, {});
  auto trainers = first->StartAll();
  first->OnEveryRank([&](Rank rank) { ASSERT_TRUE(trainers[rank]->StepUntil(4).ok()); });
  trainers.clear();
  first->Die();
  // The server died when all had been done, and nobody had heard of it.
  for (const Rank rank : {0, 1}) {
    ShardLedger(Kept(rank)->Shard().at(0).ledger, 0, 0, 0).SetProgress({3, StepOutcome::kApplied});
  }

  auto second = StartServer({0, 1}, keeper_.Units());
  trainers = second->StartAll();
  second->OnEveryRank([&](Rank rank) {
    EXPECT_EQ(trainers[rank]->finished(), 4u);
    const absl::Status stepped = trainers[rank]->StepUntil(6);
    EXPECT_TRUE(stepped.ok()) << stepped;
    EXPECT_EQ(Differences(*trainers[rank], kWorldSize), "");
  });
}

TEST_F(NodeTakeover, OfRanksWithoutFirstValues_BeginsAnew) {
  auto first = StartServer({0, 1}, {});
  std::vector<std::unique_ptr<AttachedOwner>> links(kWorldSize);
  first->OnEveryRank([&](Rank rank) {
    links[rank] = *AttachedOwner::Attach(first->TrainerOptions(rank));
    EXPECT_FALSE(links[rank]->resumes());
  });
  EXPECT_THAT(keeper_.Units(), SizeIs(2));
  links.clear();
  first->Die();
  const auto second = StartServer({0, 1}, keeper_.Units());
  EXPECT_THAT(keeper_.Units(), SizeIs(0));
}

TEST_F(NodeTakeover, OfSomethingElse_IsRefused) {
  std::vector<KeptUnit> units(1);
  units[0].name = "rank 0 of optimizer \"default\"";
  NodeOwners::Options options;
  options.ranks = {0, 1};
  options.coordinator = &coordinator_;
  options.keeper = &keeper_;
  NodeOwners owners(options);
  const absl::Status refused = owners.TakeOver(std::move(units));
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("rank 0 of optimizer"));
}

}  // namespace
}  // namespace optshard
