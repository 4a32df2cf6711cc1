#include "tools/launcher/local_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "common/clock.h"
#include "common/link/poll_until.h"
#include "common/link/process_stat.h"
#include "common/process/descendants.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;

absl::Time Soon() { return Clock::Monotonic().Now() + absl::Seconds(20); }

// Scripts of a shell as ranks; what they write goes to files of this test in place of stdout and
// stderr, since the queue takes any descriptor.
class LocalProcessesTest : public ::testing::Test {
 protected:
  LocalProcessesTest() : processes_(Options()) { AdoptOrphans(); }
  ~LocalProcessesTest() override { KillAndReapDescendants(Soon()); }

  LocalProcesses::Options Options() {
    LocalProcesses::Options options;
    options.command = [this](const Role& role, int life) {
      return LocalProcesses::Command{
          {"/bin/sh", "-c", script_},
          std::vector<std::string>{"RANK=" + std::to_string(role.rank),
                                   "LIFE=" + std::to_string(life), "PATH=/usr/bin:/bin"}};
    };
    options.output = &output_;
    return options;
  }

  // Until a process has ended.
  std::pair<Role, ProcessEnd> NextEnd() {
    while (Clock::Monotonic().Now() < deadline_) {
      processes_.Read();
      const auto ended = processes_.Reap();
      if (!ended.empty()) return ended.front();
      PollUntil({}, Clock::Monotonic().Now() + absl::Milliseconds(1));
    }
    ADD_FAILURE() << "no process has ended";
    return {};
  }
  void WaitForLines() {
    std::vector<pollfd> descriptors;
    processes_.AddTo(descriptors);
    EXPECT_GT(PollUntil(absl::MakeSpan(descriptors), deadline_), 0);
    processes_.Read();
  }

  const absl::Time deadline_ = Soon();
  std::string script_;
  OutputQueue output_;
  LocalProcesses processes_;
};

TEST_F(LocalProcessesTest, Reap_Ended_SaysHow_AndKeepsTheLastLines) {
  script_ = "echo out; echo one >&2; printf two >&2; exit $((RANK + 1))";
  ASSERT_TRUE(processes_.Start(Role::Trainer(2), 0).ok());
  const auto [role, end] = NextEnd();
  EXPECT_EQ(role, Role::Trainer(2));
  EXPECT_EQ(ToString(end), "exit code 3");
  EXPECT_THAT(processes_.LastLines(role), ElementsAre("one", "two"));
  EXPECT_TRUE(processes_.Reap().empty()) << "told once";
}

TEST_F(LocalProcessesTest, Signal_Trainer_ReachesWhatItHasStarted) {
  script_ = "trap '' TERM; sleep 1000 & echo up >&2; wait";
  ASSERT_TRUE(processes_.Start(Role::Trainer(0), 0).ok());
  WaitForLines();
  processes_.Signal(Role::Trainer(0), SIGKILL);
  EXPECT_EQ(NextEnd().second.signal, SIGKILL);
  EXPECT_TRUE(KillAndReapDescendants(Soon()));
}

TEST_F(LocalProcessesTest, Signal_ThatFindsItEnded_DoesNotHideTheEnd) {
  script_ = "exit 4";
  const auto pid = processes_.Start(Role::Server(), 0);
  ASSERT_TRUE(pid.ok());
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(*pid), &info, WEXITED | WNOWAIT), 0);
  processes_.Signal(Role::Server(), SIGTERM);
  EXPECT_EQ(NextEnd().second.exit_code, 4);
}

TEST_F(LocalProcessesTest, Reap_OfAFailedTrainer_KillsItsGroup) {
  script_ = "sleep 1000 & echo $! >&2; exit 3";
  ASSERT_TRUE(processes_.Start(Role::Trainer(0), 0).ok());
  EXPECT_EQ(NextEnd().second.exit_code, 3);
  const int left = std::stoi(processes_.LastLines(Role::Trainer(0)).front());
  while (StatOfProcess(left).has_value() && Clock::Monotonic().Now() < deadline_) {
    processes_.Reap();
    PollUntil({}, Clock::Monotonic().Now() + absl::Milliseconds(1));
  }
  EXPECT_FALSE(StatOfProcess(left).has_value());
}

TEST_F(LocalProcessesTest, Start_Successor_HasItsLife_AndNewLines) {
  script_ = "echo life $LIFE >&2";
  for (int life = 0; life < 2; ++life) {
    ASSERT_TRUE(processes_.Start(Role::Trainer(0), life).ok());
    NextEnd();
    EXPECT_THAT(processes_.LastLines(Role::Trainer(0)),
                ElementsAre("life " + std::to_string(life)));
  }
}

TEST_F(LocalProcessesTest, Start_StdinIsEmpty_WhateverTheLaunchers) {
  int typed[2];
  ASSERT_EQ(pipe(typed), 0);
  ASSERT_EQ(write(typed[1], "typed\n", 6), 6);
  close(typed[1]);
  const int before = dup(STDIN_FILENO);
  dup2(typed[0], STDIN_FILENO);
  script_ = "cat >&2; echo end >&2";
  ASSERT_TRUE(processes_.Start(Role::Trainer(0), 0).ok());
  NextEnd();
  EXPECT_THAT(processes_.LastLines(Role::Trainer(0)), ElementsAre("end"));
  dup2(before, STDIN_FILENO);
  close(before);
  close(typed[0]);
}

TEST_F(LocalProcessesTest, Read_ALotOfText_IsAllThere) {
  script_ = "i=0; while [ $i -lt 20000 ]; do echo line $i >&2; i=$((i+1)); done";
  ASSERT_TRUE(processes_.Start(Role::Trainer(0), 0).ok());
  EXPECT_TRUE(NextEnd().second.ok());
  EXPECT_EQ(processes_.LastLines(Role::Trainer(0)).back(), "line 19999");
}

}  // namespace
}  // namespace optshard
