#include "common/process/process_end.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace optshard {
namespace {

template <typename Child>
ProcessEnd EndOf(const Child& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    child();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return ProcessEndOf(status);
}

TEST(ProcessEndTest, Exit_IsItsCode) {
  const ProcessEnd end = EndOf([] { _exit(3); });
  EXPECT_FALSE(end.ok());
  EXPECT_EQ(end.shell_code(), 3);
  EXPECT_EQ(ToString(end), "exit code 3");
  EXPECT_TRUE(EndOf([] {}).ok());
}

TEST(ProcessEndTest, Signal_IsNamed_AndNotTakenForAnExitCode) {
  const ProcessEnd end = EndOf([] { raise(SIGKILL); });
  EXPECT_FALSE(end.ok());
  EXPECT_EQ(end.shell_code(), 137);
  EXPECT_EQ(ToString(end), "SIGKILL");
  EXPECT_EQ(ToString(EndOf([] { _exit(137); })), "exit code 137");
}

TEST(ProcessEndTest, SignalName_WithoutAName_IsTheNumber) {
  EXPECT_EQ(SignalName(SIGTERM), "SIGTERM");
  EXPECT_EQ(SignalName(SIGRTMIN + 6), "signal 40");
}

}  // namespace
}  // namespace optshard
