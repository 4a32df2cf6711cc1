#include "common/process/descendants.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "common/clock.h"
#include "common/process/child_process.h"

namespace optshard {
namespace {

absl::Time Soon() { return Clock::Monotonic().Now() + absl::Seconds(20); }

// A pipe that is open for writing in every process that the test starts.
class Alive {
 public:
  Alive() { EXPECT_EQ(pipe(ends_), 0); }
  ~Alive() {
    CloseOurs();
    close(ends_[0]);
  }
  int theirs() const { return ends_[1]; }
  void CloseOurs() {
    if (ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }
  // Waits until a process has written a line.
  std::string Line() {
    std::string line;
    for (char byte = 0; byte != '\n' && read(ends_[0], &byte, 1) == 1;) line += byte;
    return line;
  }
  // Whether all have ended.
  bool None() {
    pollfd end = {ends_[0], POLLIN, 0};
    return poll(&end, 1, 20000) == 1 && (end.revents & POLLIN) == 0;
  }

 private:
  int ends_[2] = {-1, -1};
};

TEST(DescendantsTest, Kill_DaemonInASessionOfItsOwn_IsFoundAndEnded) {
  AdoptOrphans();
  Alive alive;
  ChildProcess::Options options;
  options.output = alive.theirs();
  options.command = {"/bin/sh", "-c", "setsid sh -c 'echo up; exec sleep 1000' & sleep 0.01"};
  {
    auto parent = ChildProcess::Start(options);
    ASSERT_TRUE(parent.ok()) << parent.status();
    EXPECT_EQ(alive.Line(), "up\n");
    ASSERT_TRUE((*parent)->Wait(absl::Now() + absl::Seconds(20)).ok());
  }
  alive.CloseOurs();
  EXPECT_GE(KillDescendants(), 1);
  EXPECT_TRUE(KillAndReapDescendants(Soon()));
  EXPECT_TRUE(alive.None());
  EXPECT_EQ(KillDescendants(), 0);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is not reaped";
}

TEST(DescendantsTest, Kill_ChildrenOfChildren_AreAllEnded) {
  AdoptOrphans();
  Alive alive;
  ChildProcess::Options options;
  options.output = alive.theirs();
  options.command = {"/bin/sh", "-c", "(sh -c '(echo up; sleep 1000); true'); true"};
  auto child = ChildProcess::Start(options);
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(alive.Line(), "up\n");
  alive.CloseOurs();
  EXPECT_TRUE(KillAndReapDescendants(Soon()));
  EXPECT_TRUE(alive.None());
}

TEST(DescendantsTest, Kill_NoChildren_IsNone) { EXPECT_EQ(KillDescendants(), 0); }

}  // namespace
}  // namespace optshard
