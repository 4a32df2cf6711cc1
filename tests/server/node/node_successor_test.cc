// Trainers that leave, or die, and those who come after them.
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/step_info.h"
#include "gtest/gtest.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/in_child.h"

namespace optshard {
namespace {

using testing::Board;
using testing::Child;
using testing::Differences;
using testing::NewNodeAddress;
using testing::NodeRig;
using testing::NodeTrainer;

absl::Time Now() { return Clock::Monotonic().Now(); }

TEST(NodeSuccessor_AfterAnOrderlyExit_ResumesWithBlobAndBits, BetweenSteps) {
  NodeRig rig(2);
  auto trainers = rig.StartAll();
  rig.OnEveryRank([&](Rank rank) {
    ASSERT_TRUE(trainers[rank]->link().SetBlob(absl::StrCat("cursor of ", rank)).ok());
    ASSERT_TRUE(trainers[rank]->StepUntil(3).ok());
  });
  EXPECT_TRUE(trainers[1]->link().Stop(absl::Seconds(1)).ok());
  EXPECT_TRUE(trainers[1]->link().failure().ok());
  const absl::Status gone = trainers[0]->Step().status();
  EXPECT_TRUE(errors::IsTrainerGone(gone)) << gone;
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_EQ(errors::RanksOf(gone), std::vector<Rank>{1});
  EXPECT_FALSE(rig.owners().Ready());

  rig.OnEveryRank([&](Rank rank) {
    if (rank == 1) {
      auto successor = NodeTrainer::Start(rig.TrainerOptions(1));
      ASSERT_TRUE(successor.ok()) << successor.status();
      EXPECT_TRUE((*successor)->link().resumes());
      EXPECT_EQ((*successor)->link().incarnation(), 2u);
      EXPECT_EQ((*successor)->finished(), 3u);
      // It came with the first step.
      EXPECT_EQ((*successor)->link().blob(), "cursor of 1");
      EXPECT_EQ((*successor)->link().blob_step(), 1u);
      EXPECT_EQ(Differences(**successor, 2), "");
      trainers[1] = *std::move(successor);
    }
    const absl::Status stepped = trainers[rank]->StepUntil(6);
    EXPECT_TRUE(stepped.ok()) << stepped;
    EXPECT_EQ(Differences(*trainers[rank], 2), "");
  });
  EXPECT_TRUE(rig.owners().Ready());
}

// What is staged goes with the trainer, or with its next step, and nothing else has changed.
TEST(NodeSuccessor_OfOneThatHasStagedState, StepsOnAndItsMemoryIsGivenBack) {
  NodeRig rig(2);
  auto trainers = rig.StartAll();
  rig.OnEveryRank([&](Rank rank) { ASSERT_TRUE(trainers[rank]->StepUntil(1).ok()); });
  const int64_t reserved = rig.owners().reserved_bytes();
  const auto stage = [&](Rank rank) {
    StateAccess* const state = *trainers[rank]->link().state(absl::Seconds(20));
    const testing::StateShare share = trainers[rank]->ReadShare();
    const absl::Status staged = testing::StageShare(*state, share);
    EXPECT_TRUE(staged.ok()) << staged;
    EXPECT_TRUE(trainers[rank]->ReadShare() == share);
    return staged.ok();
  };
  ASSERT_TRUE(stage(0) && stage(1));
  EXPECT_GT(rig.owners().reserved_bytes(), reserved);
  ASSERT_TRUE(trainers[1]->link().Stop(absl::Seconds(1)).ok());
  trainers[1].reset();
  trainers[1] = NodeTrainer::Start(rig.TrainerOptions(1)).value();
  rig.OnEveryRank([&](Rank rank) {
    const absl::Status stepped = trainers[rank]->StepUntil(3);
    EXPECT_TRUE(stepped.ok()) << stepped;
    EXPECT_EQ(Differences(*trainers[rank], 2), "");
  });
  EXPECT_EQ(rig.owners().reserved_bytes(), reserved);
}

// The server refuses what it has no memory for, and says how much.
TEST(NodeMemoryLimit_WithoutRoomForASecondState, RefusesToStageAndStepsOn) {
  NodeRig::Options options;
  options.world_size = 1;
  int64_t taken = 0;
  {
    NodeRig rig(options);
    const auto trainer = rig.StartAll();
    taken = rig.owners().reserved_bytes();
  }
  options.address = testing::NewNodeAddress();
  options.owners.memory_limit_bytes = taken + 1000;
  NodeRig rig(options);
  const auto trainers = rig.StartAll();
  ASSERT_TRUE(trainers[0]->StepUntil(1).ok());
  StateAccess* const state = *trainers[0]->link().state(absl::Seconds(20));
  for (const Replacing what : {Replacing::kState, Replacing::kAll}) {
    const absl::Status refused = state->BeginStaging(what);
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_NE(
        refused.message().find("the state that rank 0 loads beside the one that it has needs "),
        std::string::npos)
        << refused;
    EXPECT_NE(refused.message().find(absl::StrCat("the memory limit is ", taken + 1000)),
              std::string::npos)
        << refused;
  }
  EXPECT_EQ(rig.owners().reserved_bytes(), taken);
  const absl::Status stepped = trainers[0]->StepUntil(3);
  EXPECT_TRUE(stepped.ok()) << stepped;
  EXPECT_EQ(Differences(*trainers[0], 1), "");
}

TEST(NodeSuccessor_AllTrainersLeave_AndOthersCome, WithTheSameState) {
  NodeRig rig(3);
  {
    auto trainers = rig.StartAll();
    rig.OnEveryRank([&](Rank rank) { ASSERT_TRUE(trainers[rank]->StepUntil(2).ok()); });
  }
  auto successors = rig.StartAll();
  rig.OnEveryRank([&](Rank rank) {
    EXPECT_EQ(successors[rank]->finished(), 2u);
    const absl::Status stepped = successors[rank]->StepUntil(4);
    EXPECT_TRUE(stepped.ok()) << stepped;
    EXPECT_EQ(Differences(*successors[rank], 3), "");
  });
}

TEST(NodeSuccessor_OfOneWhoseStepWasGivenUp_DoesNotFindItsBlob, ButTheOneBefore) {
  NodeRig rig(2);
  auto trainers = rig.StartAll();
  ASSERT_TRUE(trainers[1]->link().SetBlob("of step 1").ok());
  rig.OnEveryRank([&](Rank rank) { ASSERT_TRUE(trainers[rank]->StepUntil(1).ok()); });
  trainers[0].reset();
  ASSERT_TRUE(trainers[1]->link().SetBlob("of a step that was given up").ok());
  const absl::Status gone = trainers[1]->Step().status();
  EXPECT_TRUE(errors::IsTrainerGone(gone)) << gone;
  trainers[1].reset();

  trainers = rig.StartAll();
  rig.OnEveryRank([&](Rank rank) {
    EXPECT_EQ(trainers[rank]->link().blob(), rank == 1 ? "of step 1" : "");
    const absl::Status stepped = trainers[rank]->StepUntil(2);
    ASSERT_TRUE(stepped.ok()) << stepped;
  });
  trainers.clear();
  auto last = NodeTrainer::Start(rig.TrainerOptions(1));
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ((*last)->finished(), 2u);
  EXPECT_EQ((*last)->link().blob(), "of step 1");
  EXPECT_EQ((*last)->link().blob_step(), 1u);
}

// Each trainer numbers what it gives from 1 on.
TEST(NodeSuccessor_WithOtherHyperparameters_StepsWithItsOwn, FromItsFirstStepOn) {
  NodeRig rig(1);
  auto first = NodeTrainer::Start(rig.TrainerOptions(0));
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE((*first)->Step().ok());
  first->reset();
  auto successor = NodeTrainer::Start(rig.TrainerOptions(0));
  ASSERT_TRUE(successor.ok()) << successor.status();
  (*successor)->SetLearningRate(0.5);
  ASSERT_TRUE((*successor)->Step().ok());

  NodeRig other(1);
  auto alone = NodeTrainer::Start(other.TrainerOptions(0));
  ASSERT_TRUE(alone.ok()) << alone.status();
  ASSERT_TRUE((*alone)->Step().ok());
  (*alone)->SetLearningRate(0.5);
  ASSERT_TRUE((*alone)->Step().ok());
  for (int p = 0; p < (*alone)->space().parameter_count(); ++p) {
    EXPECT_EQ((*successor)->Parameter(p), (*alone)->Parameter(p)) << p;
  }
  EXPECT_NE(Differences(**alone, 1), "") << "the rates make no difference";
}

TEST(NodeSuccessor_AfterSigkillBetweenSteps_HasTheBits, AndTheOthersWereTold) {
  const LocalAddress address = NewNodeAddress();
  const std::shared_ptr<Board> board = Board::Make();
  const AttachedOwner::Options options = NodeTrainer::DefaultOptions(address, 1, 2);
  // Forked before this process has threads.
  Child victim([&] {
    auto trainer = NodeTrainer::Start(options);
    if (!trainer.ok() || !(*trainer)->StepUntil(2).ok()) return 1;
    board->ready = 1;
    pause();
    return 2;
  });
  Child successor([&] {
    if (!Board::Await(board->stage, 1)) return 1;
    auto trainer = NodeTrainer::Start(options);
    if (!trainer.ok()) return 2;
    if (!(*trainer)->link().resumes() || (*trainer)->finished() != 2) return 3;
    if (!(*trainer)->StepUntil(5).ok()) return 4;
    return Differences(**trainer, 2).empty() ? 0 : 5;
  });
  NodeRig rig(2, address);
  auto trainer = NodeTrainer::Start(rig.TrainerOptions(0));
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  ASSERT_TRUE((*trainer)->StepUntil(2).ok());
  ASSERT_TRUE(Board::Await(board->ready, 1));
  victim.Kill();
  EXPECT_EQ(victim.Wait(), -SIGKILL);
  const absl::Time start = Now();
  const absl::Status gone = (*trainer)->Step().status();
  EXPECT_TRUE(errors::IsTrainerGone(gone)) << gone;
  EXPECT_EQ(errors::RanksOf(gone), std::vector<Rank>{1});
  EXPECT_NE(gone.message().find(absl::StrCat("process ", victim.pid())), absl::string_view::npos)
      << gone;
  EXPECT_LT(Now() - start, absl::Seconds(2));
  board->stage = 1;
  const absl::Status stepped = (*trainer)->StepUntil(5);
  EXPECT_TRUE(stepped.ok()) << stepped;
  EXPECT_EQ(Differences(**trainer, 2), "");
  EXPECT_EQ(successor.Wait(), 0);
}

TEST(NodeSuccessor_WhileTheOtherWaitsInItsStep_SigkillIsTold, WithinTwoSeconds) {
  const LocalAddress address = NewNodeAddress();
  const std::shared_ptr<Board> board = Board::Make();
  const AttachedOwner::Options options = NodeTrainer::DefaultOptions(address, 1, 2);
  Child victim([&] {
    auto trainer = NodeTrainer::Start(options);
    board->ready = trainer.ok() ? 1 : 2;
    pause();
    return 2;
  });
  NodeRig rig(2, address);
  auto trainer = NodeTrainer::Start(rig.TrainerOptions(0));
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  ASSERT_TRUE(Board::Await(board->ready, 1));
  absl::Time killed;
  std::thread killer([&] {
    EXPECT_TRUE(rig.AwaitWaiting(0));
    killed = Now();
    victim.Kill();
  });
  const absl::Status gone = (*trainer)->Step().status();
  const absl::Time told = Now();
  killer.join();
  EXPECT_TRUE(errors::IsTrainerGone(gone)) << gone;
  EXPECT_LT(told - killed, absl::Seconds(2));
}

TEST(NodeSuccessor_OfOneWhoDiedInsideTheStep_FindsItFinished, WithItsBlob) {
  const LocalAddress address = NewNodeAddress();
  const std::shared_ptr<Board> board = Board::Make();
  const AttachedOwner::Options options = NodeTrainer::DefaultOptions(address, 1, 2);
  Child victim([&] {
    auto trainer = NodeTrainer::Start(options);
    if (!trainer.ok() || !(*trainer)->link().SetBlob("of step 1").ok()) return 1;
    board->ready = 1;
    // The other rank does not come before this one is dead.
    (*trainer)->Step(absl::Seconds(30)).status().IgnoreError();
    return 2;
  });
  NodeRig rig(2, address);
  auto trainer = NodeTrainer::Start(rig.TrainerOptions(0));
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  ASSERT_TRUE(Board::Await(board->ready, 1));
  ASSERT_TRUE(rig.AwaitWaiting(1));
  victim.Kill();
  EXPECT_EQ(victim.Wait(), -SIGKILL);
  const absl::StatusOr<StepInfo> info = (*trainer)->Step();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->step, 1u);
  auto successor = NodeTrainer::Start(rig.TrainerOptions(1));
  ASSERT_TRUE(successor.ok()) << successor.status();
  EXPECT_EQ((*successor)->finished(), 1u);
  EXPECT_EQ((*successor)->link().blob(), "of step 1");
  EXPECT_EQ(Differences(**successor, 2), "");
}

TEST(NodeSuccessor_StepThatWasNotBegunInTime_IsWithdrawn, AndMayBeAskedAgain) {
  NodeRig rig(2);
  auto trainers = rig.StartAll();
  EXPECT_TRUE(trainers[1]->link().Stop(absl::Seconds(1)).ok());
  EXPECT_TRUE(errors::IsTrainerGone(trainers[0]->Step().status()));
  ASSERT_TRUE(rig.AwaitWaiting(1));  // in a refusal, for rank 0
  AttachedOwner::Options options = rig.TrainerOptions(1);
  options.answer_slack = absl::ZeroDuration();
  auto successor = NodeTrainer::Start(options);
  ASSERT_TRUE(successor.ok()) << successor.status();
  const absl::Status late = (*successor)->Step(absl::Milliseconds(20)).status();
  EXPECT_TRUE(errors::IsPeersTimedOut(late)) << late;
  EXPECT_TRUE((*successor)->link().failure().ok());
  trainers[1] = *std::move(successor);
  EXPECT_TRUE(errors::IsTrainerGone(trainers[0]->Step().status()));
  // Whoever carried out what is at the doorbell would have begun before rank 0 asks.
  std::thread rank_0([&] { EXPECT_TRUE(trainers[0]->StepUntil(2).ok()); });
  EXPECT_TRUE(rig.AwaitWaiting(0));
  const absl::Status stepped = trainers[1]->Step(absl::Seconds(20)).status();
  EXPECT_TRUE(stepped.ok()) << stepped;
  EXPECT_EQ(trainers[1]->finished(), 1u) << "it was done by itself";
  EXPECT_TRUE(trainers[1]->StepUntil(2).ok());
  rank_0.join();
  EXPECT_EQ(Differences(*trainers[1], 2), "");
}

TEST(NodeSuccessor_OfOneWhoDiedBeforeTheFirstValues_GetsThem, FromRankZero) {
  const LocalAddress address = NewNodeAddress();
  const std::shared_ptr<Board> board = Board::Make();
  const AttachedOwner::Options options = NodeTrainer::DefaultOptions(address, 1, 2);
  Child victim([&] {
    auto link = AttachedOwner::Attach(options);
    board->ready = link.ok() ? 1 : 2;
    pause();
    return 2;
  });
  NodeRig rig(2, address);
  // It attaches only: the values come later.
  auto link = AttachedOwner::Attach(rig.TrainerOptions(0));
  ASSERT_TRUE(link.ok()) << link.status();
  ASSERT_TRUE(Board::Await(board->ready, 1));
  victim.Kill();
  victim.Wait();
  // A successor that is there before the owner takes part for the dead one would do so itself.
  ASSERT_TRUE(rig.AwaitWaiting(1));
  EXPECT_TRUE((*link)->Stop(absl::Seconds(1)).ok());
  rig.OnEveryRank([&](Rank rank) {
    auto successor = NodeTrainer::Start(rig.TrainerOptions(rank));
    ASSERT_TRUE(successor.ok()) << successor.status();
    EXPECT_EQ((*successor)->link().resumes(), rank != 0);
    const absl::Status stepped = (*successor)->StepUntil(2);
    EXPECT_TRUE(stepped.ok()) << stepped;
    EXPECT_EQ(Differences(**successor, 2), "");
    // Both stay until both are done.
    board->ready.fetch_add(10);
    EXPECT_TRUE(Board::Await(board->ready, 21));
  });
}

}  // namespace
}  // namespace optshard
