// Shard servers that die, and those that take over what they had in memory.
#ifndef OPTSHARD_TESTS_SERVER_NODE_NODE_TAKEOVER_FIXTURE_H_
#define OPTSHARD_TESTS_SERVER_NODE_NODE_TAKEOVER_FIXTURE_H_

#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/link/memory_budget.h"
#include "gtest/gtest.h"
#include "server/node/descriptor_keeper.h"
#include "server/node/rank_memory.h"
#include "tests/server/node/host_memory.h"
#include "tests/server/node/kept_server.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/local_coordinator.h"
#include "tests/testing/state_share.h"

namespace optshard::testing {

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

  // What each rank has after step `last`, at a server of both that then dies.
  std::vector<StateShare> StepAndDie(StepNumber last) {
    std::vector<StateShare> shares(kWorldSize);
    auto server = StartServer({0, 1}, {});
    auto trainers = server->StartAll();
    server->OnEveryRank([&](Rank rank) {
      ASSERT_TRUE(trainers[rank]->StepUntil(last).ok());
      shares[rank] = trainers[rank]->ReadShare();
    });
    trainers.clear();
    server->Die();
    return shares;
  }

  // What a step gives that is not refused because a trainer is gone; after half a minute, the
  // refusal.
  static absl::Status StepOnceNobodyIsAway(NodeTrainer& trainer) {
    const absl::Time end = Clock::Monotonic().Now() + absl::Seconds(30);
    absl::Status stepped;
    do {
      stepped = trainer.Step().status();
    } while (errors::IsTrainerGone(stepped) && Clock::Monotonic().Now() < end);
    return stepped;
  }

  // What is kept of the rank, as its next server will find it.
  std::shared_ptr<RankMemory> Kept(Rank rank) {
    for (KeptUnit& unit : keeper_.Units()) {
      std::shared_ptr<RankMemory> memory = *AdoptOnHost(std::move(unit.descriptors), budget_);
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

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_NODE_NODE_TAKEOVER_FIXTURE_H_
