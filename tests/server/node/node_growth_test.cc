// Param groups that are added at shard servers, and servers and trainers that end meanwhile.
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "common/memory_layout.h"
#include "common/step_info.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/node/descriptor_keeper.h"
#include "server/node/memory_need.h"
#include "tests/server/node/kept_server.h"
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
};
using Commits = std::vector<Commit>;

class LossySession final : public ForwardingSession {
 public:
  LossySession(std::unique_ptr<MemberSession> session, Commit commit)
      : ForwardingSession(std::move(session)), commit_(commit) {}
  absl::StatusOr<GrowthAnswer> ProposeGrowth(const GrowthProposal& proposal,
                                             absl::Time deadline) override {
    const absl::Status lost = absl::UnavailableError("no answer comes");
    const bool commits = proposal.phase == GrowthPhase::kCommit;
    if (commits && commit_ == Commit::kIsLost) return lost;
    absl::StatusOr<GrowthAnswer> answer = ForwardingSession::ProposeGrowth(proposal, deadline);
    return commits && commit_ == Commit::kAnswerIsLost ? lost : answer;
  }

 private:
  const Commit commit_;
};

class NodeGrowth : public ::testing::Test {
 protected:
  std::unique_ptr<NodeRig> StartServer(const std::set<Rank>& ranks = {0, 1},
                                       const Commits& commits = {}) {
    NodeRig::Options options;
    options.world_size = kWorldSize;
    options.owners.ranks = ranks;
    options.owners.coordinator = &coordinator_;
    if (!commits.empty()) {
      lossy_ = std::make_unique<ForwardingCoordinator>(
          &coordinator_, [commits](std::unique_ptr<MemberSession> session) {
            const Rank rank = session->id().rank;
            return std::make_unique<LossySession>(std::move(session), commits[rank]);
          });
      options.owners.coordinator = lossy_.get();
    }
    options.owners.keeper = &keeper_;
    return std::make_unique<NodeRig>(std::move(options), keeper_.Units());
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

  LocalCoordinator coordinator_{kWorldSize};
  std::unique_ptr<ForwardingCoordinator> lossy_;
  FakeKeeper keeper_;
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

// The same trainer attaches to the server's successor, and has its groups and their bits there.
TEST(NodeGrowthKept, TheServerIsKilled_TheTrainerGoesOnWithItsSuccessor) {
  testing::KeptServer server;
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

TEST_F(NodeGrowth, ATrainerEnds_ItsSuccessorAddsWhatIsThereAndNothingElse) {
  const auto server = StartServer();
  Trainers trainers = server->StartAll();
  Add(*server, trainers);
  Step(*server, trainers, 1);
  trainers[1].reset();
  server->OnEveryRank([&](Rank rank) {
    if (rank == 0) {
      EXPECT_EQ(trainers[0]->StepUntil(2), absl::OkStatus());
      return;
    }
    trainers[1] = *NodeTrainer::Start(server->TrainerOptions(1));
    OptimizerSpec other = testing::SpecOfNodes(kWorldSize, 1);
    other.rules.back().name = "sgd";
    const absl::Status refused =
        trainers[1]->link().AddGroups(other, {}, absl::OkStatus(), absl::Seconds(20));
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("nadam"));
    EXPECT_EQ(trainers[1]->AddGroup(), absl::OkStatus());
    EXPECT_EQ(trainers[1]->StepUntil(2), absl::OkStatus());
  });
  Step(*server, trainers, 3);
  ExpectBits(trainers, {0});
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

TEST_F(NodeGrowth, NoMemoryForTheGroup_IsRefusedForAllAndKeptOfNobody) {
  NodeRig::Options options;
  options.world_size = kWorldSize;
  options.owners.coordinator = &coordinator_;
  options.owners.keeper = &keeper_;
  // Enough for the labels and the paddings of what is there at first.
  int64_t limit = 300000;
  for (Rank rank = 0; rank < kWorldSize; ++rank) {
    AttachRequest request;
    request.rank = rank;
    request.spec = testing::SpecOfNodes(kWorldSize);
    limit += MemoryNeedOf(request, MemoryLayout(request.spec.space), true, true)->total();
  }
  options.owners.memory_limit_bytes = limit;
  const auto server = std::make_unique<NodeRig>(std::move(options), keeper_.Units());
  Trainers trainers = server->StartAll();
  const size_t kept = keeper_.Units().at(0).descriptors.size();
  std::vector<absl::Status> refused(kWorldSize);
  server->OnEveryRank([&](Rank rank) { refused[rank] = trainers[rank]->AddGroup(); });
  for (const absl::Status& status : refused) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank "));
  }
  EXPECT_EQ(keeper_.Units().at(0).descriptors.size(), kept);
  Step(*server, trainers, 2);
  ExpectBits(trainers, {});
}

}  // namespace
}  // namespace optshard
