// How a server ends, and what its trainers are told.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/link/local_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/in_child.h"
#include "tests/testing/local_coordinator.h"

namespace optshard {
namespace {

using testing::Await;
using testing::AwaitAsleep;
using testing::Board;
using testing::Child;
using testing::Differences;
using ::testing::HasSubstr;
using testing::NewNodeAddress;
using testing::NodeRig;
using testing::NodeTrainer;

absl::Time Now() { return Clock::Monotonic().Now(); }

constexpr absl::Duration kPrompt = absl::Seconds(5);

TEST(NodeDrain_NoTrainers_IsPrompt, AndInOrder) {
  NodeRig rig(2);
  { auto trainers = rig.StartAll(); }
  const absl::Time start = Now();
  EXPECT_TRUE(rig.Drain(absl::Seconds(20)));
  EXPECT_LT(Now() - start, kPrompt);
}

TEST(NodeDrain_WhileTrainersStep_EndsBetweenTwoSteps, OnAllRanksAlike) {
  NodeRig rig(3);
  auto trainers = rig.StartAll();
  absl::BlockingCounter to_step(3);
  std::thread drain([&] {
    to_step.Wait();
    EXPECT_TRUE(rig.Drain(absl::Seconds(20)));
  });
  rig.OnEveryRank([&](Rank rank) {
    EXPECT_TRUE(trainers[rank]->StepUntil(5).ok());
    to_step.DecrementCount();
    const absl::Status told = trainers[rank]->StepUntil(1000000);
    EXPECT_TRUE(absl::IsUnavailable(told)) << told;
    EXPECT_THAT(std::string(told.message()), HasSubstr("shutting down"));
  });
  drain.join();
  EXPECT_GE(trainers[0]->finished(), 5u);
  EXPECT_EQ(trainers[0]->finished(), trainers[1]->finished());
  EXPECT_EQ(trainers[0]->finished(), trainers[2]->finished());
}

TEST(NodeDrain_OneTrainerInItsStep_IsToldThatItWasNotApplied, WhileTheOtherNeverCame) {
  NodeRig rig(2);
  auto trainers = rig.StartAll();
  std::thread drain([&] {
    EXPECT_TRUE(rig.AwaitWaiting(0));
    EXPECT_TRUE(rig.Drain(absl::Seconds(20)));
  });
  const absl::Status told = trainers[0]->Step().status();
  drain.join();
  EXPECT_TRUE(absl::IsUnavailable(told)) << told;
  EXPECT_THAT(std::string(told.message()), HasSubstr("shutting down"));
  // Who was not in a step learns it too.
  const absl::Status later = trainers[1]->Step().status();
  EXPECT_TRUE(absl::IsUnavailable(later)) << later;
  EXPECT_THAT(std::string(later.message()), HasSubstr("shutting down"));
}

// The ranks are on two nodes, so the server that drains cannot end the step of the other one.
TEST(NodeDrain_StepThatAnotherNodeDoesNotJoin_IsGivenUpAfterTheGrace, AndItsTrainerIsTold) {
  LocalCoordinator coordinator(2);
  std::unique_ptr<NodeRig> rigs[2];
  std::unique_ptr<NodeTrainer> trainers[2];
  for (const Rank rank : {0, 1}) {
    NodeRig::Options options;
    options.world_size = 2;
    options.owners.ranks = {rank};
    options.owners.coordinator = &coordinator;
    rigs[rank] = std::make_unique<NodeRig>(options);
  }
  std::thread second([&] {
    auto started = NodeTrainer::Start(rigs[1]->TrainerOptions(1));
    ASSERT_TRUE(started.ok()) << started.status();
    trainers[1] = *std::move(started);
  });
  auto started = NodeTrainer::Start(rigs[0]->TrainerOptions(0));
  second.join();
  ASSERT_TRUE(started.ok() && trainers[1] != nullptr) << started.status();
  trainers[0] = *std::move(started);

  const auto in_step = [&] {
    const absl::StatusOr<JobStatus> status = coordinator.GetStatus(Now() + kPrompt);
    return status.ok() && !status->groups.empty() &&
           status->groups[0].members[0].progress.outcome == StepOutcome::kInStep;
  };
  const absl::Duration grace = absl::Milliseconds(500);
  std::thread drain([&] {
    EXPECT_TRUE(Await(in_step));
    const absl::Time start = Now();
    EXPECT_FALSE(rigs[0]->Drain(grace));
    EXPECT_GE(Now() - start, grace);
    EXPECT_LT(Now() - start, kPrompt);
  });
  const absl::Status told = trainers[0]->Step().status();
  drain.join();
  // Rank 0 had voted for the step, so the other rank may yet apply it.
  EXPECT_TRUE(errors::IsStepInDoubt(told)) << told;
  EXPECT_THAT(std::string(told.message()), HasSubstr("shutting down"));
}

TEST(NodeDrain_WhileARankWaitsForASuccessor, IsInOrder) {
  NodeRig rig(2);
  auto trainers = rig.StartAll();
  rig.OnEveryRank([&](Rank rank) { ASSERT_TRUE(trainers[rank]->StepUntil(1).ok()); });
  EXPECT_TRUE(trainers[1]->link().Stop(absl::Seconds(1)).ok());
  EXPECT_TRUE(errors::IsTrainerGone(trainers[0]->Step().status()));
  ASSERT_TRUE(rig.AwaitWaiting(1));  // in a refusal
  EXPECT_TRUE(rig.Drain(absl::Seconds(20)));
}

TEST(NodeDrain_RequestOfASuccessorBehindARefusal_IsAnswered, AsNotBegun) {
  NodeRig rig(2);
  auto trainers = rig.StartAll();
  rig.OnEveryRank([&](Rank rank) { ASSERT_TRUE(trainers[rank]->StepUntil(1).ok()); });
  EXPECT_TRUE(trainers[1]->link().Stop(absl::Seconds(1)).ok());
  EXPECT_TRUE(errors::IsTrainerGone(trainers[0]->Step().status()));
  ASSERT_TRUE(rig.AwaitWaiting(1));  // in a refusal, for rank 0
  auto successor = NodeTrainer::Start(rig.TrainerOptions(1));
  ASSERT_TRUE(successor.ok()) << successor.status();
  std::atomic<pid_t> asker{0};
  absl::Status told;
  std::thread asks([&] {
    asker = gettid();
    told = (*successor)->Step().status();
  });
  EXPECT_TRUE(Await([&] { return asker != 0; }));
  EXPECT_TRUE(AwaitAsleep(asker));  // it has rung
  const absl::Time start = Now();
  EXPECT_TRUE(rig.Drain(absl::Seconds(20)));
  asks.join();
  EXPECT_LT(Now() - start, kPrompt);
  EXPECT_TRUE(absl::IsUnavailable(told)) << told;
  EXPECT_THAT(std::string(told.message()), HasSubstr("shutting down"));
  EXPECT_EQ((*successor)->finished(), 1u);
  EXPECT_EQ(Differences(**successor, 2), "");
}

TEST(NodeDrain_RequestOfASuccessorOthersWaitFor_IsDoneOrAnswered, OnAllRanksAlike) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    NodeRig rig(2);
    auto trainers = rig.StartAll();
    rig.OnEveryRank([&](Rank rank) { ASSERT_TRUE(trainers[rank]->StepUntil(1).ok()); });
    EXPECT_TRUE(trainers[1]->link().Stop(absl::Seconds(1)).ok());
    auto successor = NodeTrainer::Start(rig.TrainerOptions(1));
    ASSERT_TRUE(successor.ok()) << successor.status();
    trainers[1] = *std::move(successor);
    absl::BlockingCounter about_to_ask(2);
    std::thread drain([&] {
      about_to_ask.Wait();
      EXPECT_TRUE(rig.Drain(absl::Seconds(20)));
    });
    rig.OnEveryRank([&](Rank rank) {
      about_to_ask.DecrementCount();
      const absl::Status told = trainers[rank]->StepUntil(1000000);
      EXPECT_TRUE(absl::IsUnavailable(told)) << told;
      EXPECT_THAT(std::string(told.message()), HasSubstr("shutting down"));
    });
    drain.join();
    EXPECT_EQ(trainers[0]->finished(), trainers[1]->finished());
    for (const auto& trainer : trainers) EXPECT_EQ(Differences(*trainer, 2), "");
  }
}

TEST(NodeDrain_WhileATrainerAttaches_SendsItAway, InBoundedTime) {
  NodeRig rig(2);
  absl::Status told;
  std::thread trainer([&] { told = AttachedOwner::Attach(rig.TrainerOptions(0)).status(); });
  EXPECT_TRUE(rig.AwaitJoined(0));
  const absl::Time start = Now();
  EXPECT_TRUE(rig.Drain(kPrompt));
  trainer.join();
  EXPECT_LT(Now() - start, kPrompt);
  EXPECT_TRUE(absl::IsUnavailable(told)) << told;
}

TEST(NodeDrain_ClientThatSaysNothing_IsNotWaitedFor, AtTheEnd) {
  NodeRig rig(1);
  auto silent = LocalSocket::Connect(rig.address(), Now() + kPrompt);
  ASSERT_TRUE(silent.ok()) << silent.status();
  // Who comes after it is served, so it has been taken too.
  { ASSERT_TRUE(NodeTrainer::Start(rig.TrainerOptions(0)).ok()); }
  const absl::Time start = Now();
  EXPECT_TRUE(rig.Drain(kPrompt));
  EXPECT_LT(Now() - start, kPrompt);
}

// The server as a process of its own.
struct ServerProcess {
  explicit ServerProcess(int world_size) {
    options.world_size = world_size;
    child = std::make_unique<Child>([this] {
      NodeRig rig(options);
      if (Board::Await(board->ready, 1) && rig.AwaitWaiting(0)) board->stage = 1;
      pause();
      return 0;
    });
  }
  AttachedOwner::Options TrainerOptions(Rank rank) const {
    return NodeTrainer::DefaultOptions(options.address, rank, options.world_size);
  }

  NodeRig::Options options;
  // ready 1: the trainers are; stage 1: since then, rank 0 waits for another one.
  const std::shared_ptr<Board> board = Board::Make();
  std::unique_ptr<Child> child;
};

TEST(NodeServer_ThatDoesNotAnswer_LeavesABegunStepInDoubt, ForEver) {
  NodeRig rig(2);
  std::unique_ptr<NodeTrainer> trainers[2];
  rig.OnEveryRank([&](Rank rank) {
    AttachedOwner::Options options = rig.TrainerOptions(rank);
    // The server would answer in time, but this trainer does not wait for so long.
    options.answer_slack = -absl::Seconds(2);
    auto started = NodeTrainer::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    trainers[rank] = *std::move(started);
  });
  const absl::Status told = trainers[0]->Step(absl::Milliseconds(2200)).status();
  EXPECT_TRUE(errors::IsStepInDoubt(told)) << told;
  EXPECT_EQ(trainers[0]->link().failure(), told);
}

TEST(NodeServer_ThatDoesNotAnswer_IsNoStepInDoubt, WhereTheFirstValuesWereGiven) {
  NodeRig rig(2);
  absl::Status told;
  std::unique_ptr<AttachedOwner> other;
  rig.OnEveryRank([&](Rank rank) {
    AttachedOwner::Options options = rig.TrainerOptions(rank);
    if (rank == 0) {
      options.answer_slack = absl::Milliseconds(200) - options.join_timeout;
      told = NodeTrainer::Start(options).status();
      return;
    }
    auto attached = AttachedOwner::Attach(options);
    ASSERT_TRUE(attached.ok()) << attached.status();
    other = *std::move(attached);
  });
  EXPECT_TRUE(errors::IsPeersTimedOut(told)) << told;
  EXPECT_THAT(std::string(told.message()), HasSubstr("synchronisation"));
}

TEST(NodeServer_KilledBetweenSteps_IsNoticed, AsNotApplied) {
  ServerProcess server(1);
  auto trainer = NodeTrainer::Start(server.TrainerOptions(0));
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  ASSERT_TRUE((*trainer)->StepUntil(2).ok());
  server.child->Kill();
  server.child->Wait();
  const absl::Status told = (*trainer)->Step().status();
  EXPECT_TRUE(absl::IsUnavailable(told)) << told;
  EXPECT_EQ((*trainer)->finished(), 2u);
}

TEST(NodeServer_KilledInsideAStep_LeavesItInDoubt, WithinTwoSeconds) {
  ServerProcess server(2);
  std::unique_ptr<NodeTrainer> trainers[2];
  std::vector<std::thread> starts;
  for (Rank rank = 0; rank < 2; ++rank) {
    starts.emplace_back([&, rank] {
      auto started = NodeTrainer::Start(server.TrainerOptions(rank));
      ASSERT_TRUE(started.ok()) << started.status();
      trainers[rank] = *std::move(started);
    });
  }
  for (std::thread& start : starts) start.join();
  server.board->ready = 1;
  absl::Time killed;
  std::thread killer([&] {
    EXPECT_TRUE(Board::Await(server.board->stage, 1));
    killed = Now();
    server.child->Kill();
  });
  // It waits for rank 1, who does not come.
  const absl::Status told = trainers[0]->Step().status();
  const absl::Time noticed = Now();
  killer.join();
  EXPECT_TRUE(errors::IsStepInDoubt(told)) << told;
  EXPECT_LT(noticed - killed, absl::Seconds(2));
  EXPECT_EQ(trainers[0]->link().failure(), told);
}

}  // namespace
}  // namespace optshard
