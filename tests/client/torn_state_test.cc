// A job whose state a step has torn, at a shard server with a keeper: it goes on from a checkpoint
// with one call.
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client/sharded_optimizer.h"
#include "common/errors.h"
#include "common/link/memory_budget.h"
#include "server/node/rank_memory.h"
#include "server/shard/state/shard_ledger.h"
#include "tests/client/attached_options.h"
#include "tests/client/tensors.h"
#include "tests/client/written_checkpoint.h"
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
  const std::shared_ptr<RankMemory> memory = RankMemory::Adopt(std::move(same), budget).value();
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

}  // namespace
}  // namespace optshard
