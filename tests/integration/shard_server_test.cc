// Trainers attached to a real shard server come and go, between steps and inside them; the state
// stays, and training ends with the bits of a run that nobody disturbed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/shard_server_fixture.h"
#include "tests/testing/server_ledgers.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;
using testing::IsTorn;

using ShardServerTest = testing::ShardServerFixture;

TEST_F(ShardServerTest, Kill_TrainerBetweenSteps_SuccessorGoesOnWithTheSameBits) {
  const std::string expected = Undisturbed({"--steps=6"});
  StartServer();
  Add(0, {"--steps=6", "--wait_for_trainers"});
  Add(1, {"--steps=6", "--pause_after=3"});
  Add(2, {"--steps=6", "--wait_for_trainers"});
  Event(1, "paused");
  Kill(1);
  const int successor = Add(1, {"--steps=6"});
  const nlohmann::json joined = Event(successor, "joined");
  EXPECT_EQ(joined.at("finished_step"), 3);
  EXPECT_EQ(joined.at("blob"), "after step 3");
  for (const int trainer : {0, 2, successor}) {
    EXPECT_EQ(Event(trainer, "done").at("checksum").dump(), expected) << "trainer " << trainer;
    EXPECT_EQ(*cluster_->trainer(trainer).process().Wait(Deadline()), 0);
  }
}

TEST_F(ShardServerTest, Kill_TrainerBetweenSteps_OthersThatDoNotWaitAreToldWhoSoon) {
  StartServer();
  Add(0, {"--steps=1000000"});
  Add(1, {"--steps=6", "--pause_after=3"});
  Add(2, {"--steps=1000000"});
  Event(1, "paused");
  const int64_t killed = NowMicros();
  Kill(1);
  for (const int trainer : {0, 2}) {
    const nlohmann::json error = Event(trainer, "error");
    EXPECT_EQ(error.at("code"), "UNAVAILABLE") << error;
    EXPECT_EQ(error.at("ranks"), std::vector<int>{1}) << error;
    EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr("rank 1")) << error;
    EXPECT_LE(absl::Microseconds(error.at("at_us").get<int64_t>() - killed), kNoticed) << error;
  }
}

// Wherever in a step it strikes, the step is finished by the server, or not begun.
TEST_F(ShardServerTest, Kill_TrainerAtAnyMoment_SuccessorGoesOnWithTheSameBits) {
  const std::vector<std::string> job = {"--steps=60", "--elements=300000", "--wait_for_trainers"};
  const std::string expected = Undisturbed(job);
  StartServer();
  std::vector<int> trainer_of = {Add(0, job), Add(1, job), Add(2, job)};
  for (const int trainer : trainer_of) Event(trainer, "step");
  for (int trial = 0; trial < 6; ++trial) {
    const int victim = trial % kWorldSize;
    if (trial < kWorldSize) {
      // While the step is applied. The others cannot make another one without the victim.
      const StepNumber before = StopServerWhen(IsTorn);
      Kill(trainer_of[victim]);
      ledgers_->Continue();
      trainer_of[victim] = Add(victim, job);
      EXPECT_EQ(Event(trainer_of[victim], "joined").at("finished_step"), before + 1);
      continue;
    }
    // Wherever it is: mostly before it asks for a step. Kill_TrainerBetweenSteps is sure of that.
    Event(trainer_of[victim], "step");
    absl::SleepFor(absl::Microseconds(700 * trial));
    Kill(trainer_of[victim]);
    trainer_of[victim] = Add(victim, job);
    EXPECT_GT(Event(trainer_of[victim], "joined").at("finished_step"), 0);
  }
  for (const int trainer : trainer_of) {
    EXPECT_EQ(Event(trainer, "done").at("checksum").dump(), expected) << "trainer " << trainer;
    EXPECT_EQ(*cluster_->trainer(trainer).process().Wait(Deadline()), 0);
  }
}

TEST_F(ShardServerTest, Terminate_Server_DrainsAndEndsWellAndTrainersAreTold) {
  StartServer();
  for (int rank = 0; rank < kWorldSize; ++rank) Add(rank, {"--steps=1000000"});
  for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "step");
  cluster_->server(0).Signal(SIGTERM);
  EXPECT_EQ(*cluster_->server(0).Wait(Deadline()), 0);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    const nlohmann::json error = Event(rank, "error");
    EXPECT_EQ(error.at("code"), "UNAVAILABLE") << error;
    EXPECT_EQ(error.at("torn"), false) << error;
  }
}

TEST_F(ShardServerTest, Attach_SecondTrainerOfARank_IsRefusedAndTheOthersGoOn) {
  StartServer();
  for (int rank = 0; rank < kWorldSize; ++rank) Add(rank, {"--steps=4", "--pause_after=2"});
  for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "paused");
  const int second = Add(1, {});
  const nlohmann::json error = Event(second, "error");
  EXPECT_EQ(error.at("code"), "ALREADY_EXISTS") << error;
  EXPECT_THAT(error.at("message").get<std::string>(),
              HasSubstr(absl::StrCat("process ", cluster_->trainer(1).process().pid())));
  for (int rank = 0; rank < kWorldSize; ++rank) cluster_->trainer(rank).Release();
  for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "done");
}

TEST_F(ShardServerTest, Attach_BeyondTheMemoryLimit_SaysNeedAndLimit) {
  StartServer({"--memory_limit=1MiB"});
  Add(0, {"--elements=1000000"});
  const nlohmann::json error = Event(0, "error");
  EXPECT_EQ(error.at("code"), "RESOURCE_EXHAUSTED") << error;
  EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr("limit is 1048576")) << error;
}

}  // namespace
}  // namespace optshard
