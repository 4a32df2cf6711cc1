// Param groups that are added at shard servers, and servers that end meanwhile.
#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/link/memory_budget.h"
#include "common/memory_layout.h"
#include "common/step_info.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/node/descriptor_keeper.h"
#include "server/node/memory_need.h"
#include "server/node/rank_memory.h"
#include "tests/server/node/host_memory.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/forwarding_coordinator.h"
#include "tests/testing/local_coordinator.h"

namespace optshard {
namespace {

using testing::Differences;
using testing::FakeKeeper;
using testing::ForwardingCoordinator;
using testing::ForwardingSession;
using ::testing::HasSubstr;
using testing::NodeRig;
using testing::NodeTrainer;

constexpr int kWorldSize = 2;
using Trainers = std::vector<std::unique_ptr<NodeTrainer>>;

// What a rank's commit comes to.
enum class Commit {
  kPasses,
  kIsLost,        // it does not reach the coordinator
  kAnswerIsLost,  // the coordinator takes it, and the rank does not hear of it
  kHearsOfALoss,  // already what it proposes is answered with the loss of rank 0
};
using Commits = std::vector<Commit>;

class LossySession final : public ForwardingSession {
 public:
  LossySession(std::unique_ptr<MemberSession> session, Commit commit)
      : ForwardingSession(std::move(session)), commit_(commit) {}
  absl::StatusOr<GrowthAnswer> ProposeGrowth(const GrowthProposal& proposal,
                                             absl::Time deadline) override {
    if (commit_ == Commit::kHearsOfALoss) return errors::PeerLost(0, "killed");
    const absl::Status lost = absl::UnavailableError("no answer comes");
    const bool commits = proposal.phase == GrowthPhase::kCommit;
    if (commits && commit_ == Commit::kIsLost) return lost;
    absl::StatusOr<GrowthAnswer> answer = ForwardingSession::ProposeGrowth(proposal, deadline);
    return commits && commit_ == Commit::kAnswerIsLost ? lost : answer;
  }
  absl::Status ReportFailure(const StepProgress& progress, Rank suspect,
                             const absl::Status& observed, absl::Time deadline) override {
    if (commit_ == Commit::kHearsOfALoss) return observed;
    return ForwardingSession::ReportFailure(progress, suspect, observed, deadline);
  }

 private:
  const Commit commit_;
};

class NodeGrowth : public ::testing::Test {
 protected:
  std::unique_ptr<NodeRig> StartServer(const std::set<Rank>& ranks = {0, 1},
                                       const Commits& commits = {}) {
    return StartServer(ranks, commits, keeper_->Units());
  }
  std::unique_ptr<NodeRig> StartServer(const std::set<Rank>& ranks, const Commits& commits,
                                       std::vector<KeptUnit> units) {
    NodeRig::Options options;
    options.world_size = kWorldSize;
    options.owners.ranks = ranks;
    options.owners.coordinator = coordinator_.get();
    if (!commits.empty()) {
      lossy_ = std::make_unique<ForwardingCoordinator>(
          coordinator_.get(), [commits](std::unique_ptr<MemberSession> session) {
            const Rank rank = session->id().rank;
            return std::make_unique<LossySession>(std::move(session), commits[rank]);
          });
      options.owners.coordinator = lossy_.get();
    }
    options.owners.keeper = keeper_.get();
    return std::make_unique<NodeRig>(std::move(options), std::move(units));
  }

  static void OnEvery(NodeRig& server, Trainers& trainers,
                      const std::function<absl::Status(NodeTrainer&)>& call) {
    server.OnEveryRank([&](Rank rank) {
      const absl::Status called = call(*trainers[rank]);
      EXPECT_TRUE(called.ok()) << "rank " << rank << ": " << called;
    });
  }
  static void Step(NodeRig& server, Trainers& trainers, StepNumber last) {
    OnEvery(server, trainers, [last](NodeTrainer& trainer) { return trainer.StepUntil(last); });
  }
  static void Add(NodeRig& server, Trainers& trainers) {
    OnEvery(server, trainers, [](NodeTrainer& trainer) { return trainer.AddGroup(); });
  }
  static void ExpectBits(const Trainers& trainers, const std::vector<StepNumber>& added) {
    for (const auto& trainer : trainers) {
      EXPECT_EQ(Differences(*trainer, kWorldSize, added), "");
    }
  }

  std::vector<KeptUnit> UnitsOf(Rank rank) const {
    std::vector<KeptUnit> units = keeper_->Units();
    const std::string name = absl::StrCat("rank ", rank, " ");
    units.erase(std::remove_if(
                    units.begin(), units.end(),
                    [&name](const KeptUnit& unit) { return !absl::StartsWith(unit.name, name); }),
                units.end());
    return units;
  }

  std::unique_ptr<LocalCoordinator> coordinator_ = std::make_unique<LocalCoordinator>(kWorldSize);
  std::unique_ptr<ForwardingCoordinator> lossy_;
  std::unique_ptr<FakeKeeper> keeper_ = std::make_unique<FakeKeeper>();
};

TEST_F(NodeGrowth, GroupsAreAdded_BitsOfOneThatStepsThemAll) {
  const auto server = StartServer();
  Trainers trainers = server->StartAll();
  Step(*server, trainers, 2);
  Add(*server, trainers);
  Step(*server, trainers, 4);
  Add(*server, trainers);
  Add(*server, trainers);
  Step(*server, trainers, 7);
  ExpectBits(trainers, {2, 4, 4});
}

TEST_F(NodeGrowth, RanksOfTwoServers_BitsOfOneThatStepsThemAll) {
  const auto first = StartServer({0});
  const auto second = StartServer({1});
  Trainers trainers(kWorldSize);
  first->OnEveryRank([&](Rank rank) {
    trainers[rank] = *NodeTrainer::Start((rank == 0 ? first : second)->TrainerOptions(rank));
  });
  Step(*first, trainers, 1);
  Add(*first, trainers);
  Step(*first, trainers, 3);
  ExpectBits(trainers, {1});
}

TEST_F(NodeGrowth, OneCopyOfTheParameters_GrowsOnAllRanks) {
  const auto server = StartServer();
  Trainers trainers(kWorldSize);
  server->OnEveryRank([&](Rank rank) {
    AttachedOwner::Options options = server->TrainerOptions(rank);
    options.spec.share_parameters = true;
    trainers[rank] = *NodeTrainer::Start(options);
  });
  Add(*server, trainers);
  Step(*server, trainers, 2);
  ExpectBits(trainers, {0});
}

TEST_F(NodeGrowth, TheServerEndsAfterwards_ItsSuccessorGoesOnWithAllGroups) {
  auto server = StartServer();
  Trainers trainers = server->StartAll();
  Step(*server, trainers, 2);
  Add(*server, trainers);
  Add(*server, trainers);
  Step(*server, trainers, 3);
  trainers.clear();
  server->Die();

  server = StartServer();
  trainers = server->StartAll();
  for (auto& trainer : trainers) {
    const absl::Status refused = trainer->Step().status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("make the same calls"));
  }
  for (int i = 0; i < 2; ++i) {
    // Each by itself: the rank has them.
    for (auto& trainer : trainers) {
      const absl::Status added = trainer->AddGroup();
      ASSERT_TRUE(added.ok()) << added;
      EXPECT_TRUE(trainer->link().resumes());
    }
  }
  ExpectBits(trainers, {2, 2});
  Step(*server, trainers, 5);
  ExpectBits(trainers, {2, 2});
}

TEST_F(NodeGrowth, TheServerEndsBeforeThereAreValues_TheSuccessorsTrainersGiveThem) {
  auto server = StartServer();
  Trainers trainers = server->StartAll();
  Step(*server, trainers, 2);
  OnEvery(*server, trainers, [](NodeTrainer& each) { return each.AddGroupWithoutValues(); });
  trainers.clear();
  server->Die();

  server = StartServer();
  trainers = server->StartAll();
  Add(*server, trainers);
  EXPECT_FALSE(trainers[1]->link().resumes());
  Step(*server, trainers, 4);
  ExpectBits(trainers, {2});
}

// Of two servers: one ends before it can record that its rank has got the values, and the trainer
// of the other one has gone on.
TEST_F(NodeGrowth, SomeRanksHaveTheValuesAndOthersNot_AllGetThemBeforeTheNextStep) {
  for (const auto& each : {std::pair(0, false), {1, false}, {0, true}, {1, true}}) {
    const Rank lost = each.first;
    const bool adds = each.second;  // the next group, before that step
    SCOPED_TRACE(absl::StrCat("rank ", lost, adds ? ", another group comes first" : ""));
    coordinator_ = std::make_unique<LocalCoordinator>(kWorldSize);
    keeper_ = std::make_unique<FakeKeeper>();
    std::vector<std::unique_ptr<NodeRig>> servers;
    for (Rank rank = 0; rank < kWorldSize; ++rank) servers.push_back(StartServer({rank}));
    Trainers trainers(kWorldSize);
    servers[0]->OnEveryRank([&](Rank rank) {
      trainers[rank] = *NodeTrainer::Start(servers[rank]->TrainerOptions(rank));
    });
    Step(*servers[0], trainers, 1);
    Add(*servers[0], trainers);
    trainers[lost].reset();
    servers[lost]->Die();
    {
      MemoryBudget budget;
      testing::AdoptOnHost(std::move(UnitsOf(lost)[0].descriptors), budget)
          .value()
          ->SetLastUnsynced();
    }
    servers[lost] = StartServer({lost}, {}, UnitsOf(lost));
    // Before any value travels, the rank that has them counts as if it had none.
    EXPECT_TRUE(testing::Await([&] {
      MemoryBudget budget;
      return !testing::AdoptOnHost(std::move(UnitsOf(1 - lost)[0].descriptors), budget)
                  .value()
                  ->all_synced();
    }));
    servers[0]->OnEveryRank([&](Rank rank) {
      if (rank == lost) {
        trainers[rank] = *NodeTrainer::Start(servers[rank]->TrainerOptions(rank));
        EXPECT_EQ(trainers[rank]->AddGroup(), absl::OkStatus());
        EXPECT_FALSE(trainers[rank]->link().resumes());
      }
      if (adds) {
        EXPECT_EQ(trainers[rank]->AddGroup(), absl::OkStatus());
      }
      EXPECT_EQ(trainers[rank]->StepUntil(3), absl::OkStatus());
    });
    ExpectBits(trainers, adds ? std::vector<StepNumber>{1, 1} : std::vector<StepNumber>{1});
  }
}

struct EndCase {
  const char* name;
  Commits commits;
  bool committed;
};

class NodeGrowthEnds : public NodeGrowth, public ::testing::WithParamInterface<EndCase> {};

// All processes end while their ranks agree: the job goes on with one generation, whichever.
TEST_P(NodeGrowthEnds, TheServerEndsInTheCommit_AllRanksGoOnAlike) {
  auto server = StartServer({0, 1}, GetParam().commits);
  Trainers trainers = server->StartAll();
  Step(*server, trainers, 2);
  server->OnEveryRank([&](Rank rank) {
    const absl::Status failed = trainers[rank]->AddGroup(absl::Seconds(1));
    EXPECT_FALSE(failed.ok()) << rank;
  });
  trainers.clear();
  server->Die();

  server = StartServer();
  trainers = server->StartAll();
  if (!GetParam().committed) {
    Step(*server, trainers, 3);
    ExpectBits(trainers, {});
    Add(*server, trainers);
    Step(*server, trainers, 5);
    ExpectBits(trainers, {3});
    return;
  }
  for (auto& trainer : trainers) {
    const absl::Status refused = trainer->Step().status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  }
  Add(*server, trainers);
  Step(*server, trainers, 4);
  ExpectBits(trainers, {2});
}

INSTANTIATE_TEST_SUITE_P(
    Ends, NodeGrowthEnds,
    ::testing::Values(
        EndCase{"BeforeAnyCommit", {Commit::kIsLost, Commit::kIsLost}, false},
        EndCase{"AfterOneCommit", {Commit::kAnswerIsLost, Commit::kIsLost}, false},
        EndCase{"AfterAllBeforeOneHears", {Commit::kPasses, Commit::kAnswerIsLost}, true},
        EndCase{"AfterAllBeforeAnyHears", {Commit::kAnswerIsLost, Commit::kAnswerIsLost}, true}),
    [](const auto& each) { return each.param.name; });

TEST_F(NodeGrowth, ARankDoesNotCome_IsNamed_AndNothingHasChanged) {
  const auto server = StartServer();
  Trainers trainers = server->StartAll();
  Step(*server, trainers, 1);
  const absl::Status late = trainers[0]->AddGroup(absl::Milliseconds(200));
  EXPECT_TRUE(errors::IsPeersTimedOut(late)) << late;
  EXPECT_EQ(errors::RanksOf(late), std::vector<Rank>({1}));
  Step(*server, trainers, 2);
  ExpectBits(trainers, {});
  Add(*server, trainers);
  Step(*server, trainers, 3);
  ExpectBits(trainers, {2});
}

// Before the event that tells of it has come.
TEST_F(NodeGrowth, ARankIsLostWhileGroupsAreCompared_TheOthersMayCallAgain) {
  const auto server = StartServer({0, 1}, {Commit::kPasses, Commit::kHearsOfALoss});
  Trainers trainers = server->StartAll();
  Step(*server, trainers, 1);
  const absl::Status lost = trainers[1]->AddGroup(absl::Milliseconds(200));
  EXPECT_TRUE(errors::IsOwnerAway(lost)) << lost;
}

TEST_F(NodeGrowth, NoMemoryForTheGroup_IsRefusedForAllAndKeptOfNobody) {
  NodeRig::Options options;
  options.world_size = kWorldSize;
  options.owners.coordinator = coordinator_.get();
  options.owners.keeper = keeper_.get();
  // Enough for the labels and the paddings of what is there at first.
  int64_t limit = 300000;
  for (Rank rank = 0; rank < kWorldSize; ++rank) {
    AttachRequest request;
    request.rank = rank;
    request.spec = testing::SpecOfNodes(kWorldSize);
    limit += MemoryNeedOf(request, MemoryLayout(request.spec.space), true, 1)->total();
  }
  options.owners.memory_limit_bytes = limit;
  const auto server = std::make_unique<NodeRig>(std::move(options), keeper_->Units());
  Trainers trainers = server->StartAll();
  const size_t kept = keeper_->Units().at(0).descriptors.size();
  std::vector<absl::Status> refused(kWorldSize);
  server->OnEveryRank([&](Rank rank) { refused[rank] = trainers[rank]->AddGroup(); });
  for (const absl::Status& status : refused) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank "));
  }
  EXPECT_EQ(keeper_->Units().at(0).descriptors.size(), kept);
  Step(*server, trainers, 2);
  ExpectBits(trainers, {});
}

}  // namespace
}  // namespace optshard
