// Short messages over socket pairs.
#include "common/dataplane/gloo/small_messages.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

using Outcome = Transfer::Outcome;

constexpr absl::Duration kLong = absl::Seconds(60);

// Rank 0 and rank 1, both in this process.
class SmallMessagesOfTwo : public ::testing::Test {
 protected:
  SmallMessagesOfTwo() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    raw_ = UniqueFd(dup(ends[1]));
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<UniqueFd> connections(2);
      connections[1 - rank] = UniqueFd(ends[rank]);
      ranks_[rank] = SmallMessages::Create(std::move(connections)).value();
    }
  }

  std::unique_ptr<Transfer> Send(uint64_t slot, const std::string& text) {
    return ranks_[0]->Send(1, slot, text.data(), text.size()).value();
  }
  std::unique_ptr<Transfer> Receive(uint64_t slot, std::string* text) {
    return ranks_[1]->Receive(0, slot, &(*text)[0], text->size()).value();
  }
  static Outcome WaitFor(const std::unique_ptr<Transfer>& transfer,
                         absl::Duration timeout = kLong) {
    std::string why;
    return transfer->Wait(timeout, &why);
  }
  // What is on the wire to rank 1, which has not read it.
  ssize_t BytesOnTheWire() {
    std::vector<char> bytes(1 << 20);
    const ssize_t got = recv(raw_.get(), bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
    return got < 0 ? 0 : got;
  }

  std::shared_ptr<SmallMessages> ranks_[2];
  UniqueFd raw_;  // rank 1's end again
};

TEST_F(SmallMessagesOfTwo, Messages_StartedBeforeAWait_GoOutTogetherWithIt) {
  auto first = Send(1, "first");
  auto second = Send(2, "second");
  EXPECT_EQ(BytesOnTheWire(), 0);
  EXPECT_EQ(WaitFor(first), Outcome::kDone);
  EXPECT_EQ(BytesOnTheWire(), 16 + 5 + 16 + 6);
  EXPECT_EQ(WaitFor(second), Outcome::kDone);
}

TEST_F(SmallMessagesOfTwo, Flush_WritesWhatIsQueued) {
  auto first = Send(1, "first");
  ranks_[0]->Flush();
  EXPECT_EQ(BytesOnTheWire(), 16 + 5);
}

TEST_F(SmallMessagesOfTwo, Messages_MatchBySlot_WhicheverSideIsEarlier) {
  std::string a(1, ' '), b(1, ' '), c(1, ' ');
  auto receive_b = Receive(2, &b);
  Send(1, "a");
  Send(2, "b");
  Send(1, "c");
  ranks_[0]->Flush();
  EXPECT_EQ(WaitFor(receive_b), Outcome::kDone);
  EXPECT_EQ(b, "b");
  auto receive_a = Receive(1, &a);
  auto receive_c = Receive(1, &c);
  EXPECT_EQ(WaitFor(receive_c), Outcome::kDone);
  EXPECT_EQ(WaitFor(receive_a), Outcome::kDone);
  EXPECT_EQ(a, "a");
  EXPECT_EQ(c, "c");
}

TEST_F(SmallMessagesOfTwo, LongestMessages_MoreThanASocketHolds_ArriveWhole) {
  constexpr int kMessages = 100;
  std::vector<std::string> sent, received;
  for (int i = 0; i < kMessages; ++i) {
    sent.emplace_back(SmallMessages::kMaxBytes, static_cast<char>('a' + i % 26));
    received.emplace_back(SmallMessages::kMaxBytes, ' ');
  }
  std::thread sender([&] {
    std::unique_ptr<Transfer> last;
    for (int i = 0; i < kMessages; ++i) last = Send(i, sent[i]);
    EXPECT_EQ(WaitFor(last), Outcome::kDone);
  });
  for (int i = 0; i < kMessages; ++i) {
    EXPECT_EQ(WaitFor(Receive(i, &received[i])), Outcome::kDone);
  }
  sender.join();
  EXPECT_TRUE(received == sent);
}

TEST_F(SmallMessagesOfTwo, Wait_NothingComes_TimesOutAndTheMessageMayComeLater) {
  std::string text(5, ' ');
  auto receive = Receive(1, &text);
  EXPECT_EQ(WaitFor(receive, absl::ZeroDuration()), Outcome::kTimedOut);
  Send(1, "later");
  ranks_[0]->Flush();
  EXPECT_EQ(WaitFor(receive), Outcome::kDone);
  EXPECT_EQ(text, "later");
}

TEST_F(SmallMessagesOfTwo, Abort_FromAnotherThread_EndsTheWait) {
  std::string text(1, ' ');
  auto receive = Receive(1, &text);
  std::thread aborter([&] { receive->Abort(); });
  EXPECT_EQ(WaitFor(receive), Outcome::kAborted);
  aborter.join();
}

// What a rank says last is heard, however its connection ends.
TEST_F(SmallMessagesOfTwo, PeerIsGone_WhatItSentIsReceived_TheRestIsBroken) {
  std::string said(5, ' '), never(1, ' ');
  auto receive = Receive(1, &said);
  auto never_received = Receive(2, &never);
  Send(1, "words");
  ranks_[0]->Flush();
  ranks_[0]->Cut();
  EXPECT_EQ(WaitFor(never_received), Outcome::kBroken);
  EXPECT_EQ(WaitFor(receive), Outcome::kDone);
  EXPECT_EQ(said, "words");
  EXPECT_FALSE(ranks_[1]->Receive(0, 3, &never[0], 1).ok());
  EXPECT_FALSE(ranks_[1]->Send(0, 3, "x", 1).ok());
}

TEST_F(SmallMessagesOfTwo, LookingThread_ReadsWhatAnotherWaitsFor_TheOtherWakes) {
  for (int i = 0; i < 200; ++i) {
    std::string text(1, ' '), none(1, ' ');
    auto receive = Receive(1, &text);
    auto looked_for = Receive(1000 + i, &none);
    std::atomic<bool> done{false};
    std::thread looker([&] {
      while (!done) {
        looked_for->Abort();
        EXPECT_EQ(WaitFor(looked_for), Outcome::kAborted);
      }
    });
    std::thread sender([&] { EXPECT_EQ(WaitFor(Send(1, "x")), Outcome::kDone); });
    EXPECT_EQ(WaitFor(receive), Outcome::kDone);
    done = true;
    looker.join();
    sender.join();
  }
}

TEST_F(SmallMessagesOfTwo, Cut_MemoryOfMessagesUnderWay_IsNotTouchedAnyMore) {
  std::string text(5, ' ');
  auto receive = Receive(1, &text);
  Send(1, "words");
  ranks_[0]->Flush();
  ranks_[1]->Cut();
  EXPECT_EQ(WaitFor(receive), Outcome::kBroken);
  EXPECT_EQ(text, std::string(5, ' '));
}

TEST_F(SmallMessagesOfTwo, PeerSendsSomethingElse_ConnectionIsBroken) {
  std::string text(1, ' ');
  auto at_rank_0 = ranks_[0]->Receive(1, 1, &text[0], 1).value();
  const std::string nonsense(64, 'n');
  ASSERT_EQ(send(raw_.get(), nonsense.data(), nonsense.size(), 0), 64);
  EXPECT_EQ(WaitFor(at_rank_0), Outcome::kBroken);
}

}  // namespace
}  // namespace optshard
