#include "tools/launcher/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr ProcessEnd kOk = {};
constexpr ProcessEnd kCode3 = {3, 0};
constexpr ProcessEnd kKilled = {0, SIGKILL};

// Writes down what it is asked for; processes end when the test says so.
class FakeProcesses final : public ProcessTable {
 public:
  absl::StatusOr<pid_t> Start(const Role& role, int life) override {
    if (role == cannot_start) return absl::InternalError("no more processes");
    calls.push_back(
        absl::StrCat("start ", role.Name(), life > 0 ? absl::StrCat(" life ", life) : ""));
    running.insert(role);
    return 1000 + static_cast<pid_t>(calls.size());
  }
  void Signal(const Role& role, int signal) override {
    EXPECT_EQ(running.count(role), 1u) << role.Name() << " does not run";
    calls.push_back(absl::StrCat(SignalName(signal), " ", role.Name()));
  }
  int KillAll() override {
    if (left > 0) calls.push_back("kill all");
    return left;
  }

  std::vector<std::string> TakeCalls() { return std::exchange(calls, {}); }

  std::vector<std::string> calls;
  std::set<Role> running;
  Role cannot_start = Role::Trainer(99);
  int left = 0;  // that KillAll finds
};

class JobTest : public ::testing::Test {
 protected:
  Job& Make(const Job::Options& options) {
    Job::Options with_say = options;
    with_say.say = [this](const std::string& text) { said_ += text + "\n"; };
    job_ = std::make_unique<Job>(with_say, &processes_);
    job_->Begin(now_);
    return *job_;
  }
  // A job of two ranks with both services, whose trainers run.
  Job& Training(int max_restarts = 0) {
    Job::Options options;
    options.ranks = 2;
    options.max_restarts = max_restarts;
    Job& job = Make(options);
    job.Ready(now_);
    job.Ready(now_);
    EXPECT_EQ(job.phase(), LaunchPhase::kTrain);
    processes_.TakeCalls();
    return job;
  }
  // The same on the first of several nodes, with one rank.
  Job& TrainingOnTheFirstNode() {
    Job::Options options;
    options.other_nodes = true;
    Job& job = Make(options);
    job.Ready(now_);
    job.Ready(now_);
    EXPECT_EQ(job.phase(), LaunchPhase::kTrain);
    return job;
  }
  void End(const Role& role, ProcessEnd end = kOk) {
    ASSERT_EQ(processes_.running.erase(role), 1u) << role.Name() << " does not run";
    job_->Ended(role, end, now_);
  }
  std::vector<std::string> Calls() { return processes_.TakeCalls(); }
  void Pass(absl::Duration time) {
    now_ += time;
    job_->Tick("does not listen", now_);
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  FakeProcesses processes_;
  std::string said_;
  std::unique_ptr<Job> job_;
};

TEST_F(JobTest, Begin_ServicesComeOneAfterTheOther_ThenTheTrainers) {
  Job::Options options;
  options.first_rank = 2;
  options.ranks = 2;
  Job& job = Make(options);
  EXPECT_THAT(Calls(), ElementsAre("start coordinator"));
  job.Ready(now_);
  EXPECT_THAT(Calls(), ElementsAre("start server"));
  job.Ready(now_);
  EXPECT_THAT(Calls(), ElementsAre("start rank 2", "start rank 3"));
}

TEST_F(JobTest, Begin_WithoutServices_StartsNone) {
  Job::Options options;
  options.coordinator = false;
  options.server = false;
  Job& job = Make(options);
  EXPECT_THAT(Calls(), IsEmpty());
  EXPECT_EQ(job.phase(), LaunchPhase::kStartCoordinator) << "which is on another node";
  job.Ready(now_);
  EXPECT_THAT(Calls(), ElementsAre("start rank 0"));
}

TEST_F(JobTest, AllTrainersDone_EndsServerThenCoordinator_WithZero) {
  Job& job = Training();
  End(Role::Trainer(1));
  EXPECT_THAT(Calls(), IsEmpty()) << "rank 0 still trains";
  End(Role::Trainer(0));
  EXPECT_THAT(Calls(), ElementsAre("SIGTERM server"));
  End(Role::Server());
  EXPECT_THAT(Calls(), ElementsAre("SIGTERM coordinator"));
  End(Role::Coordinator());
  EXPECT_TRUE(job.over());
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_FALSE(job.failure().has_value());
}

TEST_F(JobTest, TrainerFails_EndsTheOthers_WithItsExitCode) {
  Job& job = Training();
  End(Role::Trainer(1), kCode3);
  EXPECT_THAT(Calls(), ElementsAre("SIGTERM rank 0"));
  End(Role::Trainer(0), {7, 0});
  End(Role::Server());
  End(Role::Coordinator());
  EXPECT_TRUE(job.over());
  EXPECT_EQ(job.exit_code(), 3) << "of the first that failed";
  EXPECT_THAT(job.failure()->what, HasSubstr("rank 1 (process 1004) failed with exit code 3"));
  EXPECT_EQ(job.failure()->role, Role::Trainer(1));
  EXPECT_THAT(said_, HasSubstr("rank 1"));
}

TEST_F(JobTest, TrainerKilled_GivesTheSignalAndItsName) {
  Job& job = Training();
  End(Role::Trainer(0), kKilled);
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_THAT(job.failure()->what, HasSubstr("was killed by SIGKILL"));
}

TEST_F(JobTest, TrainerFails_WithRestartsLeft_IsReplaced) {
  Job& job = Training(/*max_restarts=*/2);
  End(Role::Trainer(1), kKilled);
  EXPECT_THAT(Calls(), ElementsAre("start rank 1 life 1"));
  EXPECT_THAT(said_, HasSubstr("rank 1 (process 1004) was killed by SIGKILL; it is started again "
                               "(restart 1 of 2)"));
  End(Role::Trainer(1), kCode3);
  EXPECT_THAT(Calls(), ElementsAre("start rank 1 life 2"));
  End(Role::Trainer(0), kCode3);
  EXPECT_THAT(Calls(), ElementsAre("SIGTERM rank 1")) << "restarts count for all ranks together";
  EXPECT_EQ(job.exit_code(), 3);
}

TEST_F(JobTest, ReplacedTrainer_ThatIsDone_LeavesNoFailure) {
  Job& job = Training(1);
  End(Role::Trainer(1), kKilled);
  End(Role::Trainer(1));
  End(Role::Trainer(0));
  End(Role::Server());
  End(Role::Coordinator());
  EXPECT_TRUE(job.over());
  EXPECT_EQ(job.exit_code(), 0);
}

TEST_F(JobTest, TrainerFails_WithoutServer_IsNotReplaced) {
  Job::Options options;
  options.server = false;
  options.max_restarts = 3;
  Job& job = Make(options);
  job.Ready(now_);
  Calls();
  End(Role::Trainer(0), kKilled);
  EXPECT_THAT(Calls(), ElementsAre("SIGTERM coordinator"));
}

TEST_F(JobTest, ServerEnds_WhileTrainersTrain_IsAFailureEvenWithZero) {
  Job& job = Training(/*max_restarts=*/3);
  End(Role::Server());
  EXPECT_THAT(Calls(), ElementsAre("SIGTERM rank 0", "SIGTERM rank 1"));
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_THAT(job.failure()->what, HasSubstr("server (process 1002) ended, though"));
}

TEST_F(JobTest, CoordinatorDoesNotStart_GivesItsExitCode) {
  Job& job = Make({});
  End(Role::Coordinator(), kCode3);
  EXPECT_TRUE(job.over());
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_EQ(job.failure()->role, Role::Coordinator());
}

TEST_F(JobTest, ServiceIsNotReadyInTime_SaysWhatItLacks) {
  Job& job = Make({});
  job.Ready(now_);
  Pass(absl::Seconds(59));
  EXPECT_EQ(job.phase(), LaunchPhase::kStartServer);
  Pass(absl::Seconds(1));
  EXPECT_EQ(job.failure()->what, "the shard server does not listen within 1m");
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_EQ(job.phase(), LaunchPhase::kEndServer);
}

TEST_F(JobTest, TrainerCannotBeStarted_EndsThoseThatWere) {
  processes_.cannot_start = Role::Trainer(1);
  Job::Options options;
  options.ranks = 3;
  Job& job = Make(options);
  job.Ready(now_);
  job.Ready(now_);
  EXPECT_THAT(Calls(),
              ElementsAre("start coordinator", "start server", "start rank 0", "SIGTERM rank 0"));
  EXPECT_THAT(job.failure()->what, HasSubstr("rank 1 was not started: no more processes"));
}

TEST_F(JobTest, Interrupt_ReachesTrainersAsItIs_ThenServices) {
  Job& job = Training();
  job.Interrupt(SIGINT, now_);
  EXPECT_THAT(Calls(), ElementsAre("SIGINT rank 0", "SIGINT rank 1"));
  End(Role::Trainer(0), {0, SIGINT});
  EXPECT_THAT(Calls(), IsEmpty());
  End(Role::Trainer(1));
  EXPECT_THAT(Calls(), ElementsAre("SIGTERM server"));
  End(Role::Server());
  End(Role::Coordinator());
  EXPECT_TRUE(job.over());
  EXPECT_EQ(job.exit_code(), 130);
  EXPECT_EQ(job.failure()->what, "stopped by SIGINT");
}

TEST_F(JobTest, Interrupt_TrainerThatFailsThen_IsNotReplaced) {
  Job& job = Training(/*max_restarts=*/3);
  job.Interrupt(SIGTERM, now_);
  Calls();
  End(Role::Trainer(0), kCode3);
  EXPECT_THAT(Calls(), IsEmpty());
  EXPECT_EQ(job.exit_code(), 143);
}

TEST_F(JobTest, GraceIsOver_KillsAll) {
  Job& job = Training();
  processes_.left = 4;
  job.Interrupt(SIGTERM, now_);
  Calls();
  Pass(absl::Seconds(9));
  EXPECT_THAT(Calls(), IsEmpty());
  Pass(absl::Seconds(1));
  EXPECT_EQ(job.phase(), LaunchPhase::kKill);
  EXPECT_THAT(Calls(), ElementsAre("kill all"));
  EXPECT_THAT(said_, HasSubstr("rank 0, rank 1 did not end in time"));
  processes_.left = 0;
  Pass(absl::ZeroDuration());
  EXPECT_TRUE(job.over());
}

TEST_F(JobTest, SecondInterrupt_KillsAtOnce) {
  Job& job = Training();
  processes_.left = 4;
  job.Interrupt(SIGINT, now_);
  Calls();
  job.Interrupt(SIGINT, now_);
  EXPECT_THAT(Calls(), ElementsAre("kill all"));
  EXPECT_EQ(job.exit_code(), 130);
}

TEST_F(JobTest, Interrupt_BeforeTrainersRun_EndsTheServices) {
  Job& job = Make({});
  Calls();
  job.Interrupt(SIGINT, now_);
  EXPECT_THAT(Calls(), ElementsAre("SIGTERM coordinator"));
  End(Role::Coordinator());
  EXPECT_TRUE(job.over());
}

TEST_F(JobTest, End_WhatTrainersLeftBehind_IsKilled) {
  Job& job = Training();
  processes_.left = 1;
  End(Role::Trainer(0));
  End(Role::Trainer(1));
  End(Role::Server());
  Calls();
  End(Role::Coordinator());
  EXPECT_FALSE(job.over());
  EXPECT_THAT(Calls(), ElementsAre("kill all"));
  processes_.left = 0;
  Pass(absl::ZeroDuration());
  EXPECT_TRUE(job.over());
  EXPECT_EQ(job.exit_code(), 0);
}

TEST_F(JobTest, Kill_WhatCannotBeKilled_IsGivenUpAtTheDeadline) {
  Job& job = Training();
  processes_.left = 1;
  job.Interrupt(SIGINT, now_);
  job.Interrupt(SIGINT, now_);
  Pass(absl::Seconds(10));
  EXPECT_TRUE(job.over());
  EXPECT_THAT(said_, HasSubstr("cannot be killed"));
}

TEST_F(JobTest, OtherNodes_CoordinatorWaitsForTheirRanks) {
  Job& job = TrainingOnTheFirstNode();
  End(Role::Trainer(0));
  End(Role::Server());
  Calls();
  EXPECT_EQ(job.phase(), LaunchPhase::kEndCoordinator);
  EXPECT_THAT(Calls(), IsEmpty()) << "it ends by itself";
  Pass(absl::Seconds(30));
  EXPECT_EQ(job.phase(), LaunchPhase::kEndCoordinator);
  End(Role::Coordinator());
  EXPECT_TRUE(job.over());
  EXPECT_EQ(job.exit_code(), 0);
}

TEST_F(JobTest, OtherNodes_CoordinatorThatEndsByItself_IsNoFailure) {
  Job& job = TrainingOnTheFirstNode();
  End(Role::Coordinator());
  EXPECT_EQ(job.phase(), LaunchPhase::kTrain);
  End(Role::Trainer(0));
  End(Role::Server());
  EXPECT_TRUE(job.over());
  EXPECT_EQ(job.exit_code(), 0);
}

TEST_F(JobTest, OtherNodes_AfterAFailure_CoordinatorIsEnded) {
  Job& job = TrainingOnTheFirstNode();
  End(Role::Trainer(0), kCode3);
  Calls();
  End(Role::Server());
  EXPECT_THAT(Calls(), ElementsAre("SIGTERM coordinator"));
  EXPECT_EQ(job.exit_code(), 3);
}

TEST_F(JobTest, Abandon_KillsAtOnce) {
  Job& job = Training();
  processes_.left = 3;
  job.Abandon("the launcher is gone", now_);
  EXPECT_THAT(Calls(), ElementsAre("kill all"));
  EXPECT_EQ(job.exit_code(), 1);
}

}  // namespace
}  // namespace optshard
