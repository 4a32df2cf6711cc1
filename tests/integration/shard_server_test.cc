// Trainers attached to a real shard server come and go, between steps and inside them; the state
// stays, and training ends with the bits of a run that nobody disturbed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/link/process_stat.h"
#include "tests/testing/mini_cluster.h"
#include "tests/testing/server_ledgers.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSubsetOf;
using testing::IsTorn;
using testing::MiniCluster;
using ::testing::Not;
using testing::ServerLedgers;

constexpr int kWorldSize = 3;
constexpr absl::Duration kNoticed = absl::Seconds(2);

// Steps that take the server some milliseconds.
const std::vector<std::string> kLongSteps = {"--steps=20", "--elements=1500000", "--skip_every=2",
                                             "--wait_for_trainers"};

absl::Time Deadline() { return absl::Now() + absl::Seconds(60); }

void WaitUntilAsleep(pid_t process) {
  const absl::Time deadline = Deadline();
  while (StatOfProcess(process).value_or(ProcessStat()).state != 'S' && absl::Now() < deadline) {
    sched_yield();
  }
}

int64_t NowMicros() { return absl::ToUnixMicros(Clock::Monotonic().Now()); }

class ShardServerTest : public ::testing::Test {
 protected:
  void StartServer(const std::vector<std::string>& arguments = {},
                   const std::string& ranks = "0-2") {
    MiniCluster::Options options;
    options.world_size = kWorldSize;
    auto cluster = MiniCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    const absl::StatusOr<std::string> attach = cluster_->AddServer(ranks, arguments);
    ASSERT_TRUE(attach.ok()) << attach.status();
    attach_ = *attach;
  }

  // Returns the trainer's index in the cluster.
  int Add(int rank, const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {absl::StrCat("--attach=", attach_), "--policy=balanced"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    EXPECT_EQ(cluster_->AddTrainer(rank, all), absl::OkStatus());
    return added_++;
  }

  // Trainers of all ranks, attached to these servers, after the third of six steps.
  void PauseAll(const std::vector<std::string>& servers) {
    for (int rank = 0; rank < kWorldSize; ++rank) {
      attach_ = servers[rank];
      Add(rank, {"--steps=6", "--pause_after=3", "--wait_for_trainers"});
    }
    for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "paused");
  }

  nlohmann::json Event(int trainer, const std::string& event) {
    const auto line = cluster_->trainer(trainer).WaitFor(event, Deadline());
    EXPECT_TRUE(line.ok()) << line.status();
    return line.ok() ? *line : nlohmann::json();
  }

  // The server itself, not its keeper.
  void KillServer(int server) {
    const absl::StatusOr<pid_t> process = cluster_->ServerProcess(server);
    ASSERT_TRUE(process.ok()) << process.status();
    ASSERT_EQ(kill(*process, SIGKILL), 0);
  }

  // The keeper last: it has no time to start another server while it is stopped.
  void KillServerAndKeeper(int server) {
    cluster_->server(server).Signal(SIGSTOP);
    KillServer(server);
    cluster_->server(server).Signal(SIGKILL);
  }

  // Stops the first server at such a moment. Returns the last step that each of its ranks had
  // finished by then.
  StepNumber StopServerWhen(const ServerLedgers::Moment& moment) {
    const absl::StatusOr<pid_t> process = cluster_->ServerProcess(0);
    EXPECT_TRUE(process.ok()) << process.status();
    absl::StatusOr<ServerLedgers> ledgers = ServerLedgers::Of(process.value_or(0), kWorldSize);
    EXPECT_TRUE(ledgers.ok()) << ledgers.status();
    if (!ledgers.ok()) return 0;
    ledgers_ = std::make_unique<ServerLedgers>(*std::move(ledgers));
    const absl::Status stopped = ledgers_->StopWhen(moment, Deadline());
    EXPECT_TRUE(stopped.ok()) << stopped;
    StepNumber finished = std::numeric_limits<StepNumber>::max();
    for (const KeptState& each : ledgers_->Read()) {
      finished = std::min(finished, each.progress.finished);
    }
    return finished;
  }

  void Kill(int trainer) {
    cluster_->trainer(trainer).process().Signal(SIGKILL);
    EXPECT_EQ(*cluster_->trainer(trainer).process().Wait(Deadline()), 128 + SIGKILL);
  }

  // The checksum that all ranks end with when nobody disturbs them.
  std::string Undisturbed(const std::vector<std::string>& arguments) {
    StartServer();
    for (int rank = 0; rank < kWorldSize; ++rank) Add(rank, arguments);
    std::string checksum;
    for (int rank = 0; rank < kWorldSize; ++rank) {
      checksum = Event(rank, "done").at("checksum").dump();
      EXPECT_EQ(*cluster_->trainer(rank).process().Wait(Deadline()), 0);
    }
    cluster_.reset();
    added_ = 0;
    return checksum;
  }

  std::unique_ptr<MiniCluster> cluster_;
  std::unique_ptr<ServerLedgers> ledgers_;
  std::string attach_;
  int added_ = 0;
};

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

TEST_F(ShardServerTest, Kill_ServerBetweenSteps_TrainersGoOnWithTheSameBits) {
  const std::string expected = Undisturbed({"--steps=6"});
  StartServer();
  PauseAll({attach_, attach_, attach_});
  KillServer(0);
  for (int rank = 0; rank < kWorldSize; ++rank) cluster_->trainer(rank).Release();
  for (int rank = 0; rank < kWorldSize; ++rank) {
    EXPECT_EQ(Event(rank, "done").at("checksum").dump(), expected) << "rank " << rank;
    EXPECT_EQ(*cluster_->trainer(rank).process().Wait(Deadline()), 0);
  }
}

TEST_F(ShardServerTest, Kill_ServerAndATrainer_ASuccessorGoesOnWithTheSameBits) {
  const std::string expected = Undisturbed({"--steps=6"});
  StartServer();
  PauseAll({attach_, attach_, attach_});
  Kill(1);
  KillServer(0);
  for (const int rank : {0, 2}) cluster_->trainer(rank).Release();
  const int successor = Add(1, {"--steps=6"});
  const nlohmann::json joined = Event(successor, "joined");
  EXPECT_EQ(joined.at("finished_step"), 3);
  EXPECT_EQ(joined.at("blob"), "after step 3");
  for (const int trainer : {0, 2, successor}) {
    EXPECT_EQ(Event(trainer, "done").at("checksum").dump(), expected) << "trainer " << trainer;
  }
}

// Two servers of one host, or as if of two: the one that lives joins the job anew.
TEST_F(ShardServerTest, Kill_OneServerOfTwo_AllGoOnWithTheSameBits) {
  const std::string expected = Undisturbed({"--steps=6"});
  for (const std::string plane : {"--plane=shm", "--plane=gloo"}) {
    StartServer({plane}, "0-1");
    const absl::StatusOr<std::string> other = cluster_->AddServer("2", {plane});
    ASSERT_TRUE(other.ok()) << other.status();
    PauseAll({attach_, attach_, *other});
    KillServer(1);
    for (int rank = 0; rank < kWorldSize; ++rank) cluster_->trainer(rank).Release();
    for (int rank = 0; rank < kWorldSize; ++rank) {
      EXPECT_EQ(Event(rank, "done").at("checksum").dump(), expected) << plane << ", rank " << rank;
    }
    cluster_.reset();
    added_ = 0;
  }
}

// The trainers wait for the answer; the server has not seen what they ask for.
TEST_F(ShardServerTest, Kill_ServerBeforeItSeesTheStep_TrainersGoOnWithTheSameBits) {
  const std::string expected = Undisturbed({"--steps=6"});
  StartServer();
  PauseAll({attach_, attach_, attach_});
  StopServerWhen([](const std::vector<KeptState>& kept) { return !IsTorn(kept); });
  for (int rank = 0; rank < kWorldSize; ++rank) cluster_->trainer(rank).Release();
  for (int rank = 0; rank < kWorldSize; ++rank) {
    Event(rank, "stepping");
    WaitUntilAsleep(cluster_->trainer(rank).process().pid());
  }
  KillServer(0);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    EXPECT_EQ(Event(rank, "done").at("checksum").dump(), expected) << "rank " << rank;
  }
}

// All ranks have applied the step, and not all have heard of the others.
TEST_F(ShardServerTest, Kill_ServerWhenAllHaveApplied_CountsTheStep) {
  const std::string expected = Undisturbed(kLongSteps);
  StartServer();
  for (int rank = 0; rank < kWorldSize; ++rank) Add(rank, kLongSteps);
  for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "stepping");
  StopServerWhen([](const std::vector<KeptState>& kept) {
    return !IsTorn(kept) && absl::c_any_of(kept, [](const KeptState& each) {
      return each.progress.outcome == StepOutcome::kApplied;
    });
  });
  KillServer(0);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    EXPECT_EQ(Event(rank, "done").at("checksum").dump(), expected) << "rank " << rank;
  }
}

TEST_F(ShardServerTest, Kill_ServerWhileItAppliesAStep_IsDataLossForAll) {
  StartServer();
  for (int rank = 0; rank < kWorldSize; ++rank) Add(rank, kLongSteps);
  for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "stepping");
  const StepNumber before = StopServerWhen(IsTorn);
  KillServer(0);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    const nlohmann::json error = Event(rank, "error");
    EXPECT_EQ(error.at("code"), "DATA_LOSS") << error;
    EXPECT_EQ(error.at("torn"), true) << error;
    EXPECT_THAT(error.at("message").get<std::string>(),
                HasSubstr(absl::StrCat("step ", before + 1, " is torn, ")));
  }
}

// Nobody could find a server that had lost its keeper, nor start it again.
TEST_F(ShardServerTest, Kill_Keeper_ServerEndsInOrderAndTrainersAreTold) {
  StartServer();
  for (int rank = 0; rank < kWorldSize; ++rank) Add(rank, {"--steps=1000000"});
  for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "step");
  cluster_->server(0).Signal(SIGKILL);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    const nlohmann::json error = Event(rank, "error");
    EXPECT_EQ(error.at("code"), "UNAVAILABLE") << error;
    EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr("shutting down")) << error;
  }
}

TEST_F(ShardServerTest, Kill_ServerWithoutAKeeper_AllTrainersAreToldSoon) {
  StartServer({"--no-keeper"});
  for (int rank = 0; rank < kWorldSize; ++rank) Add(rank, {"--steps=1000000"});
  for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "step");
  const int64_t killed = NowMicros();
  cluster_->server(0).Signal(SIGKILL);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    const nlohmann::json error = Event(rank, "error");
    EXPECT_TRUE(error.at("code") == "UNAVAILABLE" || error.at("code") == "DATA_LOSS") << error;
    EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr("shard server")) << error;
    EXPECT_LE(absl::Microseconds(error.at("at_us").get<int64_t>() - killed), kNoticed) << error;
  }
}

// Nobody starts another server, and the memory is gone: on the node that is said at once. The
// ranks of other nodes are told whom they wait for.
TEST_F(ShardServerTest, Kill_ServerAndKeeper_ItsTrainersAreToldSoonAndOthersWhoIsAway) {
  StartServer({}, "0-1");
  const std::string with_both = attach_;
  const absl::StatusOr<std::string> other = cluster_->AddServer("2", {});
  ASSERT_TRUE(other.ok()) << other.status();
  for (int rank = 0; rank < kWorldSize; ++rank) {
    attach_ = rank < 2 ? with_both : *other;
    Add(rank, {"--steps=1000000", "--wait_for_trainers", "--step_timeout_ms=3000"});
  }
  for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "step");
  const int64_t killed = NowMicros();
  KillServerAndKeeper(0);
  for (const int rank : {0, 1}) {
    const nlohmann::json error = Event(rank, "error");
    EXPECT_TRUE(error.at("code") == "UNAVAILABLE" || error.at("in_doubt") == true) << error;
    EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr("its keeper")) << error;
    EXPECT_LE(absl::Microseconds(error.at("at_us").get<int64_t>() - killed), kNoticed) << error;
  }
  const nlohmann::json error = Event(2, "error");
  EXPECT_EQ(error.at("code"), "UNAVAILABLE") << error;
  EXPECT_THAT(error.at("ranks").get<std::vector<int>>(), IsSubsetOf({0, 1}));
  EXPECT_THAT(error.at("ranks").get<std::vector<int>>(), Not(IsEmpty()));
  EXPECT_LE(absl::Microseconds(error.at("at_us").get<int64_t>() - killed),
            absl::Seconds(3) + kNoticed);

  // A server that is started there has no state: together with those that have some it cannot go
  // on.
  ASSERT_TRUE(cluster_->AddServerAt(with_both, "0-1", {}).ok());
  std::vector<int> fresh;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    attach_ = rank < 2 ? with_both : *other;
    fresh.push_back(Add(rank, {"--steps=6"}));
  }
  for (const int trainer : fresh) {
    const nlohmann::json refused = Event(trainer, "error");
    EXPECT_EQ(refused.at("ranks"), (std::vector<int>{0, 1})) << refused;
    EXPECT_THAT(refused.at("message").get<std::string>(), HasSubstr("start all ranks anew"));
  }
}

TEST_F(ShardServerTest, Kill_TheOnlyServerAndItsKeeper_AFreshOneIsToldToStartTheJobAgain) {
  StartServer();
  for (int rank = 0; rank < kWorldSize; ++rank) Add(rank, {"--steps=1000000"});
  for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "step");
  KillServerAndKeeper(0);
  for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "error");
  ASSERT_TRUE(cluster_->AddServerAt(attach_, "0-2", {}).ok());
  std::vector<int> fresh;
  for (int rank = 0; rank < kWorldSize; ++rank) fresh.push_back(Add(rank, {"--steps=6"}));
  for (const int trainer : fresh) {
    const nlohmann::json refused = Event(trainer, "error");
    EXPECT_EQ(refused.at("code"), "FAILED_PRECONDITION") << refused;
    EXPECT_THAT(refused.at("message").get<std::string>(), HasSubstr("start the job again"));
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
