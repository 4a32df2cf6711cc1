// A job whose state a step has torn, at a shard server with a keeper: it goes on from a checkpoint
// with one call.
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/sharded_optimizer.h"
#include "common/errors.h"
#include "common/ids.h"
#include "common/link/memory_budget.h"
#include "server/node/rank_memory.h"
#include "server/shard/state/shard_ledger.h"
#include "tests/client/attached_options.h"
#include "tests/client/tensors.h"
#include "tests/client/written_checkpoint.h"
#include "tests/server/node/host_memory.h"
#include "tests/server/node/kept_server.h"
#include "tests/testing/client_ranks.h"

namespace optshard {
namespace {

using testing::ErrorOf;

constexpr int kElements = 5000;

void Step(ShardedOptimizer& optimizer, const at::Tensor& parameter, int step) {
  parameter.mutable_grad() = at::full({kElements}, 0.125 * step);
  optimizer.step();
}

// As it is where the server before has died while it applied step 3.
void Tear(std::vector<KeptUnit>* units) {
  MemoryBudget budget;
  std::vector<UniqueFd> same;
  for (const UniqueFd& fd : units->at(0).descriptors) {
    same.emplace_back(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  }
  const std::shared_ptr<RankMemory> memory = testing::AdoptOnHost(std::move(same), budget).value();
  ShardLedger(memory->Shard().at(0).ledger, 0, 0, 0).SetProgress({2, StepOutcome::kTorn});
}

TEST(TornStateTest, LoadedCheckpoint_GoesOnWithTheSameBits) {
  testing::KeptServer server([](int life, std::vector<KeptUnit>* units) {
    if (life == 2) Tear(units);
  });
  const at::Tensor parameter = testing::Parameter({kElements}, 1);
  const RuleOptions adam = RuleOptions("adam").Set("lr", 0.25);
  ShardedOptimizer optimizer({parameter}, adam, testing::AttachedTo(server.address(), 0, 1));
  Step(optimizer, parameter, 1);
  testing::WrittenCheckpoint checkpoint(testing::NewCheckpointRoot());
  checkpoint.WriteShare(optimizer, {parameter}, "after step 1");
  checkpoint.Commit();
  optimizer.consolidate_state_dict();
  Step(optimizer, parameter, 2);
  server.Kill();
  server.Return();
  for (int call = 0; call < 2; ++call) {
    const absl::Status torn = ErrorOf([&] { Step(optimizer, parameter, 3); });
    EXPECT_TRUE(errors::IsTornStep(torn)) << torn;
    EXPECT_THAT(torn.ToString(), ::testing::HasSubstr("before a checkpoint is loaded"));
  }
  EXPECT_TRUE(absl::IsDataLoss(ErrorOf([&] { optimizer.state(parameter); })));

  // The parameters would stay those of no step.
  EXPECT_TRUE(
      absl::IsDataLoss(ErrorOf([&] { optimizer.load_state_dict(optimizer.state_dict()); })));
  EXPECT_TRUE(errors::IsTornStep(ErrorOf([&] { Step(optimizer, parameter, 3); })));

  EXPECT_EQ(optimizer.load_checkpoint(checkpoint.root()).step, 1u);
  EXPECT_EQ(optimizer.finished_step(), 1u);
  EXPECT_EQ(optimizer.blob(), "after step 1");
  for (int step = 2; step <= 4; ++step) Step(optimizer, parameter, step);
  // What is kept is whole again.
  server.Kill();
  server.Return();
  Step(optimizer, parameter, 5);
  EXPECT_EQ(optimizer.finished_step(), 5u);
  optimizer.Close();

  testing::ExpectAllOk(testing::RunRanks(1, [&](const ShardedOptimizerOptions& options) {
    const at::Tensor same = testing::Parameter({kElements}, 1);
    ShardedOptimizer uninterrupted({same}, adam, options);
    for (int step = 1; step <= 5; ++step) Step(uninterrupted, same, step);
    EXPECT_EQ(testing::BytesOf(parameter), testing::BytesOf(same));
    uninterrupted.Close();
  }));
}

// It must not make that call again, while the other rank loads: both would be told that they make
// different calls, and not that the state is torn.
TEST(TornStateTest, RankThatConsolidatesWhileAnotherSteps_IsToldTooAndLoads) {
  constexpr int kRanks = 2;
  testing::KeptServer server(
      [](int life, std::vector<KeptUnit>* units) {
        if (life == 2) Tear(units);
      },
      kRanks);
  const auto on_every_rank = [](const std::function<void(Rank)>& work) {
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < kRanks; ++rank) threads.emplace_back(work, rank);
    for (std::thread& thread : threads) thread.join();
  };
  std::vector<at::Tensor> parameters;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    parameters.push_back(testing::Parameter({kElements}, 1));
  }
  std::vector<std::unique_ptr<ShardedOptimizer>> optimizers(kRanks);
  testing::WrittenCheckpoint checkpoint(testing::NewCheckpointRoot());
  on_every_rank([&](Rank rank) {
    optimizers[rank] = std::make_unique<ShardedOptimizer>(
        std::vector<at::Tensor>{parameters[rank]}, RuleOptions("adam").Set("lr", 0.25),
        testing::AttachedTo(server.address(), rank, kRanks));
    for (int step = 1; step <= 2; ++step) Step(*optimizers[rank], parameters[rank], step);
    checkpoint.WriteShare(*optimizers[rank], {parameters[rank]});
  });
  checkpoint.Commit();
  server.Kill();
  server.Return();
  on_every_rank([&](Rank rank) {
    const absl::Status torn = ErrorOf([&] {
      if (rank == 0) optimizers[rank]->consolidate_state_dict();
      if (rank == 1) Step(*optimizers[rank], parameters[rank], 3);
    });
    EXPECT_TRUE(errors::IsTornStep(torn)) << "rank " << rank << ": " << torn;
    const absl::Status loaded = ErrorOf([&] {
      EXPECT_EQ(optimizers[rank]->load_checkpoint(checkpoint.root()).step, 2u);
      Step(*optimizers[rank], parameters[rank], 3);
    });
    EXPECT_TRUE(loaded.ok()) << "rank " << rank << ": " << loaded;
    optimizers[rank]->Close();
  });
}

}  // namespace
}  // namespace optshard
