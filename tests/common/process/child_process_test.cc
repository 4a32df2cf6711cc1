#include "common/process/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/process/scratch_directory.h"

namespace optshard {
namespace {

std::unique_ptr<ChildProcess> Shell(const std::string& script, int link = -1, int output = -1) {
  ChildProcess::Options options;
  options.command = {"/bin/sh", "-c", script};
  options.link = link;
  options.output = output;
  auto child = ChildProcess::Start(options);
  EXPECT_TRUE(child.ok()) << child.status();
  return *std::move(child);
}

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

TEST(ChildProcessTest, Wait_Exit_GivesItsCode) { EXPECT_EQ(*Shell("exit 7")->Wait(Soon()), 7); }

TEST(ChildProcessTest, Wait_Killed_Gives128AndTheSignal) {
  const auto child = Shell("exec sleep 100");
  EXPECT_EQ(child->exit_code(), absl::nullopt);
  child->Signal(SIGTERM);
  EXPECT_EQ(*child->Wait(Soon()), 128 + SIGTERM);
}

TEST(ChildProcessTest, Wait_StillRunning_IsDeadlineExceededNamingIt) {
  const auto child = Shell("exec sleep 100");
  const auto code = child->Wait(absl::Now());
  EXPECT_EQ(code.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(code.status().message().find(std::to_string(child->pid())), absl::string_view::npos);
}

TEST(ChildProcessTest, Destroy_StillRunning_LeavesNoProcess) {
  auto child = Shell("exec sleep 100");
  const pid_t pid = child->pid();
  child.reset();
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST(ChildProcessTest, Start_NoSuchBinary_IsNotFound) {
  ChildProcess::Options options;
  options.command = {"/no/such/binary"};
  EXPECT_EQ(ChildProcess::Start(options).status().code(), absl::StatusCode::kNotFound);
}

TEST(ChildProcessTest, Start_LinkAndOutput_AreTheChilds) {
  int link[2];
  int output[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link), 0);
  ASSERT_EQ(pipe(output), 0);
  const auto child =
      Shell("echo to-link >&3; echo to-output; echo to-error >&2", link[1], output[1]);
  close(link[1]);
  close(output[1]);
  EXPECT_EQ(*child->Wait(Soon()), 0);
  char text[64] = {};
  EXPECT_EQ(read(link[0], text, sizeof text), 8);
  EXPECT_EQ(std::string(text), "to-link\n");
  std::string all;
  for (ssize_t count; (count = read(output[0], text, sizeof text)) > 0;) all.append(text, count);
  EXPECT_EQ(all, "to-output\nto-error\n");
  close(link[0]);
  close(output[0]);
}

// All that a process wrote to a pipe; waits for its end.
std::string TextOf(int descriptor) {
  std::string text;
  char buffer[256];
  for (ssize_t count; (count = read(descriptor, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(count));
  }
  close(descriptor);
  return text;
}

TEST(ChildProcessTest, Start_OutputErrorAndEnvironment_AreApart) {
  int output[2];
  int error[2];
  ASSERT_EQ(pipe2(output, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(error, O_CLOEXEC), 0);
  ChildProcess::Options options;
  options.command = {"/bin/sh", "-c", "echo out $WHO; echo err $HOME >&2"};
  options.output = output[1];
  options.error = error[1];
  options.environment = std::vector<std::string>{"WHO=rank 1"};
  const auto child = ChildProcess::Start(options);
  ASSERT_TRUE(child.ok()) << child.status();
  close(output[1]);
  close(error[1]);
  EXPECT_EQ(TextOf(output[0]), "out rank 1\n");
  EXPECT_EQ(TextOf(error[0]), "err\n") << "HOME is not in its environment";
}

TEST(ChildProcessTest, Start_NotAProgram_SaysSoOnStderr_AndEndsWith127) {
  const ScratchDirectory folder;
  const std::string file = (folder.path() / "data").string();
  std::ofstream(file) << "no program";
  ASSERT_EQ(chmod(file.c_str(), 0700), 0);
  int output[2];
  ASSERT_EQ(pipe2(output, O_CLOEXEC), 0);
  ChildProcess::Options options;
  options.command = {file};
  options.output = output[1];
  const auto child = ChildProcess::Start(options);
  ASSERT_TRUE(child.ok()) << child.status();
  close(output[1]);
  EXPECT_EQ(TextOf(output[0]), file + " cannot be executed: Exec format error\n");
  EXPECT_EQ(*(*child)->Wait(Soon()), 127);
}

TEST(ChildProcessTest, SignalGroup_ReachesWhatTheChildStarted) {
  int output[2];
  ASSERT_EQ(pipe2(output, O_CLOEXEC), 0);
  const auto child = Shell("sleep 1000 & sleep 1000", -1, output[1]);
  close(output[1]);
  child->SignalGroup(SIGTERM);
  EXPECT_EQ(TextOf(output[0]), "") << "which ends once both have";
  EXPECT_EQ(*child->Wait(Soon()), 128 + SIGTERM);
  EXPECT_EQ(child->end()->signal, SIGTERM);
}

}  // namespace
}  // namespace optshard
