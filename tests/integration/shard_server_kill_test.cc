// Shard servers that trainers are attached to are killed, between steps and inside them. A keeper
// starts a server again over the same state, and training ends with the bits of a run that nobody
// disturbed; where it cannot, everybody is told why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/link/process_stat.h"
#include "common/membership/coordinator_client_rpc.h"
#include "common/membership/membership.h"
#include "tests/integration/shard_server_fixture.h"
#include "tests/testing/server_ledgers.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSubsetOf;
using testing::IsTorn;
using ::testing::Not;

// Steps that take the server some milliseconds.
const std::vector<std::string> kLongSteps = {"--steps=20", "--elements=1500000", "--skip_every=2",
                                             "--wait_for_trainers"};

class ShardServerKillTest : public testing::ShardServerFixture {
 protected:
  // Until the coordinator knows of a loss, which trainers may be told sooner.
  void AwaitFailure() {
    const auto coordinator = MakeCoordinatorClient(cluster_->coordinator_address());
    ASSERT_TRUE(coordinator.ok()) << coordinator.status();
    for (const absl::Time deadline = Deadline(); absl::Now() < deadline;) {
      const absl::StatusOr<JobStatus> status =
          (*coordinator)->GetStatus(Clock::Monotonic().Now() + absl::Seconds(10));
      ASSERT_TRUE(status.ok()) << status.status();
      if (status->groups.at(0).state == GroupState::kFailed) return;
      absl::SleepFor(absl::Milliseconds(10));
    }
    FAIL() << "the coordinator knows of no loss";
  }

  // Trainers of all ranks, attached to these servers, after the third of six steps.
  void PauseAll(const std::vector<std::string>& servers) {
    for (int rank = 0; rank < kWorldSize; ++rank) {
      attach_ = servers[rank];
      Add(rank, {"--steps=6", "--pause_after=3", "--wait_for_trainers"});
    }
    for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "paused");
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

  static void WaitUntilAsleep(pid_t process) {
    const absl::Time deadline = Deadline();
    while (StatOfProcess(process).value_or(ProcessStat()).state != 'S' && absl::Now() < deadline) {
      sched_yield();
    }
  }
};

TEST_F(ShardServerKillTest, Kill_ServerBetweenSteps_TrainersGoOnWithTheSameBits) {
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

TEST_F(ShardServerKillTest, Kill_ServerAndATrainer_ASuccessorGoesOnWithTheSameBits) {
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
TEST_F(ShardServerKillTest, Kill_OneServerOfTwo_AllGoOnWithTheSameBits) {
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
TEST_F(ShardServerKillTest, Kill_ServerBeforeItSeesTheStep_TrainersGoOnWithTheSameBits) {
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
TEST_F(ShardServerKillTest, Kill_ServerWhenAllHaveApplied_CountsTheStep) {
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

TEST_F(ShardServerKillTest, Kill_ServerWhileItAppliesAStep_IsDataLossForAll) {
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
TEST_F(ShardServerKillTest, Kill_Keeper_ServerEndsInOrderAndTrainersAreTold) {
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

TEST_F(ShardServerKillTest, Kill_ServerWithoutAKeeper_AllTrainersAreToldSoon) {
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
TEST_F(ShardServerKillTest, Kill_ServerAndKeeper_ItsTrainersAreToldSoonAndOthersWhoIsAway) {
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

TEST_F(ShardServerKillTest, Kill_TheOnlyServerAndItsKeeper_AFreshOneIsToldToStartTheJobAgain) {
  StartServer();
  for (int rank = 0; rank < kWorldSize; ++rank) Add(rank, {"--steps=1000000"});
  for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "step");
  KillServerAndKeeper(0);
  for (int rank = 0; rank < kWorldSize; ++rank) Event(rank, "error");
  ASSERT_NO_FATAL_FAILURE(AwaitFailure());
  ASSERT_TRUE(cluster_->AddServerAt(attach_, "0-2", {}).ok());
  std::vector<int> fresh;
  for (int rank = 0; rank < kWorldSize; ++rank) fresh.push_back(Add(rank, {"--steps=6"}));
  for (const int trainer : fresh) {
    const nlohmann::json refused = Event(trainer, "error");
    EXPECT_EQ(refused.at("code"), "FAILED_PRECONDITION") << refused;
    EXPECT_THAT(refused.at("message").get<std::string>(), HasSubstr("start the job again"));
  }
}

}  // namespace
}  // namespace optshard
