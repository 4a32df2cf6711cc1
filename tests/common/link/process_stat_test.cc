#include "common/link/process_stat.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace optshard {
namespace {

TEST(ProcessStat_OfThisProcess_IsRunning, WhateverItsName) {
  prctl(PR_SET_NAME, "a) Z 1 (b");
  const absl::optional<ProcessStat> stat = StatOfProcess(getpid());
  ASSERT_TRUE(stat.has_value());
  EXPECT_EQ(stat->state, 'R');
  EXPECT_EQ(stat->parent, getppid());
  EXPECT_GT(stat->start_ticks, 0u);
  EXPECT_FALSE(stat->ended());
  EXPECT_EQ(StatOfProcess(getpid())->start_ticks, stat->start_ticks);
}

TEST(ProcessStat_OfAChildThatHasEnded_SaysSo, UntilItIsReaped) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, child, &info, WEXITED | WNOWAIT), 0);
  const absl::optional<ProcessStat> stat = StatOfProcess(child);
  ASSERT_TRUE(stat.has_value());
  EXPECT_TRUE(stat->ended());
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(StatOfProcess(child).has_value());
}

}  // namespace
}  // namespace optshard
