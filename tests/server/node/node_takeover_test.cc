// A shard server that dies, and the one that goes on with what it had in memory.
#include <unistd.h>

#include <memory>
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
#include "server/shard/state/shard_ledger.h"
#include "tests/server/node/node_rig.h"
#include "tests/server/node/node_takeover_fixture.h"
#include "tests/testing/local_coordinator.h"

namespace optshard::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

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

  // The server may have refused one more step before it died.
  const absl::Status away = StepOnceNobodyIsAway(*trainers[0]);
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
  Store({0.5}, trainers[1]->link().replica()[0].parameters);
  EXPECT_EQ(Load(trainers[0]->link().replica()[0].parameters, 1), Values{0.5});
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
}  // namespace optshard::testing
