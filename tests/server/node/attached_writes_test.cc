// What counts as a write of a trainer that has another process.
#include "server/node/attached_writes.h"

#include <poll.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "common/link/poll_until.h"
#include "common/link/unique_fd.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

class AttachedWritesTest : public ::testing::Test {
 protected:
  AttachedWritesTest() { Seat(); }

  void Seat() {
    std::shared_ptr<WriteCountAsker> asker = *WriteCountAsker::Create();
    trainer_ = UniqueFd(dup(asker->trainer_fd()));
    asker->GiveAway();
    writes_.Seat(std::move(asker));
  }
  // Asks, and answers this.
  absl::StatusOr<uint64_t> CountNow(const WriteCount& answer) {
    std::thread trainer([&] {
      PollUntil(trainer_.get(), POLLIN, absl::InfiniteFuture());
      AnswerWriteCounts(trainer_.get(), [&] { return answer; });
    });
    absl::StatusOr<uint64_t> count = writes_.CountNow();
    trainer.join();
    return count;
  }

  AttachedWrites writes_{3};
  UniqueFd trainer_;
};

TEST_F(AttachedWritesTest, BeforeItsFirstRequest_ATrainerMayWriteAtAnyTime) {
  EXPECT_TRUE(writes_.are_expected());
  writes_.Told({7, false});
  EXPECT_FALSE(writes_.are_expected());
  EXPECT_EQ(writes_.count(), 0u) << "nothing was copied before";
}

TEST_F(AttachedWritesTest, AnotherNumber_IsAWrite_WhetherToldOrAsked) {
  writes_.Told({7, false});
  writes_.Told({7, false});
  EXPECT_EQ(writes_.count(), 0u);
  writes_.Told({8, true});
  EXPECT_EQ(writes_.count(), 1u);
  EXPECT_TRUE(writes_.are_expected());
  EXPECT_EQ(*CountNow({8, false}), 1u);
  EXPECT_FALSE(writes_.are_expected());
  EXPECT_EQ(*CountNow({2, false}), 2u);
  EXPECT_EQ(writes_.count(), 2u);
}

TEST_F(AttachedWritesTest, ATrainerThatIsKilled_MayHaveWritten) {
  writes_.Told({7, false});
  trainer_ = UniqueFd();
  const absl::Status unknown = writes_.CountNow().status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(unknown.message(), "the trainer of rank 3")) << unknown;
  writes_.Gone();
  EXPECT_EQ(*writes_.CountNow(), 1u);
  EXPECT_TRUE(writes_.are_expected());
}

TEST_F(AttachedWritesTest, OneThatIsKnownToWrite_HasNothingToAdd) {
  writes_.Told({7, false});
  writes_.Told({8, true});
  writes_.Gone();
  EXPECT_EQ(writes_.count(), 1u);
}

TEST_F(AttachedWritesTest, OnceItHasLeft_NothingOfItCounts) {
  writes_.Told({7, false});
  writes_.BeginLeave();
  EXPECT_TRUE(writes_.are_expected());
  EXPECT_EQ(*CountNow({7, false}), 0u);
  EXPECT_TRUE(writes_.are_expected()) << "it says what it did, not what it will do";
  writes_.EndLeave();
  writes_.Told({8, false});
  trainer_ = UniqueFd();
  writes_.Gone();
  EXPECT_EQ(*writes_.CountNow(), 0u);
  EXPECT_TRUE(writes_.are_expected());
}

TEST_F(AttachedWritesTest, OneThatGoesBeforeItHasLeft_MayHaveWritten) {
  writes_.Told({7, false});
  writes_.BeginLeave();
  writes_.Gone();
  writes_.EndLeave();
  EXPECT_EQ(writes_.count(), 1u);
}

TEST_F(AttachedWritesTest, EachTrainer_CountsFromAnotherNumber) {
  writes_.Told({7, false});
  writes_.BeginLeave();
  writes_.EndLeave();
  Seat();
  EXPECT_TRUE(writes_.are_expected());
  writes_.Told({100, false});
  EXPECT_EQ(writes_.count(), 0u);
  EXPECT_EQ(writes_.calls(), 2u);
}

}  // namespace
}  // namespace optshard
