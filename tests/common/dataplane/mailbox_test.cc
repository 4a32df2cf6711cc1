#include "common/dataplane/shm/mailbox.h"

#include <sys/mman.h>

#include <thread>

#include "gtest/gtest.h"

namespace optshard {
namespace {

constexpr Rank kOther = 1;
constexpr int kWorldSize = 2;

// Mailboxes that lie one behind the other; only the pages that are used take memory.
class Mailboxes {
 public:
  explicit Mailboxes(int count)
      : bytes_each_(Mailbox::Bytes(kWorldSize)),
        bytes_(bytes_each_ * static_cast<size_t>(count)),
        memory_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Mailboxes() { munmap(memory_, bytes_); }

  bool valid() const { return memory_ != MAP_FAILED; }
  Mailbox At(int index) const {
    return Mailbox(static_cast<char*>(memory_) + bytes_each_ * static_cast<size_t>(index));
  }

 private:
  const size_t bytes_each_;
  const size_t bytes_;
  void* const memory_;
};

TEST(Mailbox_ClosedWithoutPosting_TellsPiecesThatNeverCome, FromThoseThatDid) {
  const Mailboxes memory(1);
  ASSERT_TRUE(memory.valid());
  Mailbox mailbox = memory.At(0);
  EXPECT_FALSE(mailbox.ClosedWithoutPosting(0));
  mailbox.WritePiece(0, {}, nullptr, 0);
  mailbox.SetDisconnectReason({DisconnectReason::kClosed, -1});
  EXPECT_FALSE(mailbox.ClosedWithoutPosting(0));
  EXPECT_TRUE(mailbox.ClosedWithoutPosting(1));
}

TEST(Mailbox_ClosedWithoutTaking_TellsPiecesThatStay, FromThoseThatWereTaken) {
  const Mailboxes memory(1);
  ASSERT_TRUE(memory.valid());
  Mailbox mailbox = memory.At(0);
  EXPECT_FALSE(mailbox.ClosedWithoutTaking(kOther, 0));
  mailbox.SetTaken(kOther, 1);
  mailbox.SetDisconnectReason({DisconnectReason::kClosed, -1});
  EXPECT_FALSE(mailbox.ClosedWithoutTaking(kOther, 0));
  EXPECT_TRUE(mailbox.ClosedWithoutTaking(kOther, 1));
}

// One that gives up may not have done its part; that is no reason to call it closed.
TEST(Mailbox_RankGivesUp_HasNotClosed, Anything) {
  const Mailboxes memory(1);
  ASSERT_TRUE(memory.valid());
  Mailbox mailbox = memory.At(0);
  mailbox.SetDisconnectReason({DisconnectReason::kOther, -1});
  EXPECT_FALSE(mailbox.ClosedWithoutPosting(0));
  EXPECT_FALSE(mailbox.ClosedWithoutTaking(kOther, 0));
}

// A rank does its last part and closes while another one looks. Many mailboxes, so that some are
// looked at in just that moment.
TEST(Mailbox_LookedAtWhileItsRankCloses_NeverLacks, WhatWasDoneBefore) {
  constexpr int kMailboxes = 10000;
  const Mailboxes memory(kMailboxes);
  ASSERT_TRUE(memory.valid());
  std::thread closing([&] {
    for (int i = 0; i < kMailboxes; ++i) {
      Mailbox mailbox = memory.At(i);
      // Each the last thing before it closes, in turn.
      if (i % 2 == 0) mailbox.SetTaken(kOther, 1);
      mailbox.WritePiece(0, {}, nullptr, 0);
      if (i % 2 != 0) mailbox.SetTaken(kOther, 1);
      mailbox.SetDisconnectReason({DisconnectReason::kClosed, -1});
    }
  });
  int lacks_piece = 0;
  int lacks_taken = 0;
  for (int i = 0; i < kMailboxes; ++i) {
    const Mailbox mailbox = memory.At(i);
    while (mailbox.disconnect_reason().kind == DisconnectReason::kNone) {
      if (mailbox.ClosedWithoutPosting(0)) ++lacks_piece;
      if (mailbox.ClosedWithoutTaking(kOther, 0)) ++lacks_taken;
    }
  }
  closing.join();
  EXPECT_EQ(lacks_piece, 0);
  EXPECT_EQ(lacks_taken, 0);
}

}  // namespace
}  // namespace optshard
