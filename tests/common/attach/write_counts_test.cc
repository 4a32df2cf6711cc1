// What a server learns of a trainer that it asks.
#include "common/attach/write_counts.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "common/link/poll_until.h"
#include "common/link/unique_fd.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);
constexpr absl::Duration kShort = absl::Milliseconds(20);

class WriteCountsTest : public ::testing::Test {
 protected:
  WriteCountsTest() : trainer_(dup(asker_->trainer_fd())) { asker_->GiveAway(); }
  ~WriteCountsTest() override {
    asker_->HangUp();
    if (answering_.joinable()) answering_.join();
  }

  // The trainer answers from now on, until nobody asks any more.
  void Answer() {
    answering_ = std::thread([this] {
      bool asked = true;
      while (asked) {
        PollUntil(trainer_.get(), POLLIN, absl::InfiniteFuture());
        asked = AnswerWriteCounts(trainer_.get(), [this] {
          return WriteCount{writes_.load(), expected_.load()};
        });
      }
    });
  }
  void EndTrainer() { trainer_ = UniqueFd(); }

  const std::unique_ptr<WriteCountAsker> asker_ = *WriteCountAsker::Create();
  UniqueFd trainer_;
  std::atomic<uint64_t> writes_{5};
  std::atomic<bool> expected_{false};
  std::thread answering_;
};

TEST_F(WriteCountsTest, EachQuestion_HasTheAnswerOfItsMoment) {
  Answer();
  for (uint64_t writes : {uint64_t{5}, uint64_t{6}, ~uint64_t{0}}) {
    writes_ = writes;
    expected_ = writes == 6;
    const absl::StatusOr<WriteCount> count = asker_->Ask(kLong);
    ASSERT_TRUE(count.ok()) << count.status();
    EXPECT_EQ(count->writes, writes);
    EXPECT_EQ(count->are_expected, writes == 6);
  }
}

TEST_F(WriteCountsTest, WhoDoesNotAnswer_IsNotWaitedForLonger_AndTheLateAnswerCountsForNothing) {
  EXPECT_EQ(asker_->Ask(kShort).status().code(), absl::StatusCode::kDeadlineExceeded);
  AnswerWriteCounts(trainer_.get(), [] { return WriteCount{1, true}; });
  Answer();
  EXPECT_EQ(asker_->Ask(kLong)->writes, 5u);
}

TEST_F(WriteCountsTest, ATrainerThatIsKilled_IsSeenWhileItIsAsked) {
  std::thread kill([this] {
    absl::SleepFor(kShort);
    EndTrainer();
  });
  EXPECT_EQ(asker_->Ask(kLong).status().code(), absl::StatusCode::kUnavailable);
  kill.join();
}

TEST_F(WriteCountsTest, WhoAsksWhileItIsHungUp_IsTold) {
  std::thread hang_up([this] {
    absl::SleepFor(kShort);
    asker_->HangUp();
  });
  EXPECT_EQ(asker_->Ask(kLong).status().code(), absl::StatusCode::kUnavailable);
  hang_up.join();
}

TEST_F(WriteCountsTest, MessagesOfAnotherSize_AreNone) {
  ASSERT_EQ(send(trainer_.get(), "eight by", 8, MSG_NOSIGNAL), 8);
  ASSERT_EQ(send(trainer_.get(), "thirty-two bytes are too many...", 32, MSG_NOSIGNAL), 32);
  EXPECT_EQ(asker_->Ask(kShort).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(WriteCountsTest, ATrainerThatSendsWithoutEnd_IsNotListenedToForEver) {
  std::atomic<bool> done{false};
  std::thread flood([&] {
    const uint64_t answer[] = {77, 0, 0};  // to no question
    while (!done) send(trainer_.get(), answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT);
  });
  EXPECT_EQ(asker_->Ask(kShort).status().code(), absl::StatusCode::kDeadlineExceeded);
  done = true;
  flood.join();
}

}  // namespace
}  // namespace optshard
