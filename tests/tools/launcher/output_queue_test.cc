#include "tools/launcher/output_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>

#include "common/link/unique_fd.h"

namespace optshard {
namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader = UniqueFd(ends[0]);
    writer = UniqueFd(ends[1]);
    fcntl(reader.get(), F_SETFL, O_NONBLOCK);
  }
  std::string Read() const {
    std::string text;
    char buffer[4096];
    for (ssize_t count; (count = read(reader.get(), buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }

  UniqueFd reader;
  UniqueFd writer;
};

TEST(OutputQueueTest, Flush_WritesInOrder) {
  Pipe pipe;
  OutputQueue queue;
  EXPECT_EQ(queue.descriptor(), -1);
  queue.Add(pipe.writer.get(), "a\n");
  queue.Add(pipe.writer.get(), "b\n");
  EXPECT_EQ(queue.descriptor(), pipe.writer.get());
  queue.Flush();
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(pipe.Read(), "a\nb\n");
}

TEST(OutputQueueTest, Flush_NobodyReads_KeepsTheRest_AndNeverWaits) {
  Pipe slow;
  Pipe other;
  OutputQueue queue(200'000);
  std::string text;
  while (!queue.full()) {
    const std::string line(999, 'x');
    queue.Add(slow.writer.get(), line + "\n");
    text += line + "\n";
  }
  queue.Add(other.writer.get(), "after that\n");
  queue.Flush();
  EXPECT_FALSE(queue.empty());
  EXPECT_EQ(queue.descriptor(), slow.writer.get());
  EXPECT_EQ(other.Read(), "") << "a line began before another one was whole";
  std::string received;
  while (!queue.empty()) {
    received += slow.Read();
    queue.Flush();
  }
  received += slow.Read();
  EXPECT_EQ(received, text);
  EXPECT_EQ(other.Read(), "after that\n");
  EXPECT_FALSE(queue.full());
}

TEST(OutputQueueTest, Flush_ReaderIsGone_DropsItsTextOnly) {
  signal(SIGPIPE, SIG_IGN);
  Pipe gone;
  Pipe other;
  gone.reader = UniqueFd();
  OutputQueue queue;
  queue.Add(gone.writer.get(), std::string(10'000, 'x'));
  queue.Add(other.writer.get(), "seen\n");
  queue.Add(gone.writer.get(), "y");
  queue.Flush();
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(other.Read(), "seen\n");
  queue.Add(gone.writer.get(), "z");
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace optshard
