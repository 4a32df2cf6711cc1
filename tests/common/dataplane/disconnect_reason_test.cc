#include "common/dataplane/disconnect_reason.h"

#include "common/errors.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

constexpr Rank kSelf = 0;
constexpr Rank kPeer = 1;
constexpr Rank kOther = 2;

absl::Status Heard(DisconnectReason::Kind kind, Rank about) {
  const DisconnectReason sent = {kind, about};
  return PeerDisconnected(kSelf, kPeer, DisconnectReason::Decode(sent.Encode()), "it was seen");
}

TEST(DisconnectReason_OfAFailure, NamesTheRankAtFault) {
  const DisconnectReason lost = DisconnectReason::Of(errors::PeerLost(kOther, "killed"));
  EXPECT_EQ(lost.kind, DisconnectReason::kPeerLost);
  EXPECT_EQ(lost.about, kOther);
  const DisconnectReason late = DisconnectReason::Of(errors::PeersTimedOut({kOther, 3}, "a wait"));
  EXPECT_EQ(late.kind, DisconnectReason::kPeerTimedOut);
  EXPECT_EQ(late.about, kOther);
  const DisconnectReason own = DisconnectReason::Of(absl::InternalError("a bug"));
  EXPECT_EQ(own.kind, DisconnectReason::kOther);
}

TEST(PeerDisconnected_PeerGaveUpForAThirdRank, ThatOneIsNamed) {
  const absl::Status lost = Heard(DisconnectReason::kPeerLost, kOther);
  EXPECT_TRUE(errors::IsPeerLost(lost)) << lost;
  EXPECT_EQ(errors::RanksOf(lost), std::vector<Rank>{kOther});
  const absl::Status late = Heard(DisconnectReason::kPeerTimedOut, kOther);
  EXPECT_TRUE(errors::IsPeersTimedOut(late)) << late;
  EXPECT_EQ(errors::RanksOf(late), std::vector<Rank>{kOther});
}

TEST(PeerDisconnected_PeerHasClosed, IsToldFromOneThatCrashed) {
  const absl::Status closed = Heard(DisconnectReason::kClosed, -1);
  EXPECT_TRUE(HasClosed(closed)) << closed;
  EXPECT_TRUE(HasClosed(errors::WithContext(closed, "a step")));
  EXPECT_FALSE(HasClosed(Heard(DisconnectReason::kNone, -1)));
  EXPECT_FALSE(HasClosed(Heard(DisconnectReason::kPeerLost, kOther)));
  EXPECT_FALSE(HasClosed(absl::OkStatus()));
}

TEST(PeerDisconnected_PeerClosedForAThirdRank, ThatOneIsNamed) {
  const absl::Status closed = PeerDisconnected(kOther, kSelf, {DisconnectReason::kClosed, -1}, "");
  EXPECT_EQ(errors::RanksOf(closed), std::vector<Rank>{kSelf});
  const DisconnectReason reason = DisconnectReason::Of(closed);
  EXPECT_EQ(reason.kind, DisconnectReason::kClosed);
  EXPECT_FALSE(reason.closed_of_own_accord());
  const absl::Status heard =
      PeerDisconnected(kPeer, kOther, DisconnectReason::Decode(reason.Encode()), "it was seen");
  EXPECT_TRUE(HasClosed(heard)) << heard;
  EXPECT_EQ(errors::RanksOf(heard), std::vector<Rank>{kSelf}) << heard;
  // The one that has closed itself hears who waited for it.
  const absl::Status told = PeerDisconnected(kSelf, kOther, reason, "it was seen");
  EXPECT_EQ(errors::RanksOf(told), std::vector<Rank>{kOther}) << told;
}

TEST(PeerDisconnected_PeerWaitedInVain, WhoCameTooLateIsNamedByItselfAndByOthers) {
  const absl::Status own = Heard(DisconnectReason::kPeerTimedOut, kSelf);
  EXPECT_TRUE(errors::IsPeersTimedOut(own)) << own;
  EXPECT_EQ(errors::RanksOf(own), std::vector<Rank>{kSelf});
  const absl::Status heard =
      PeerDisconnected(kOther, kSelf, DisconnectReason::Of(own), "it was seen");
  EXPECT_TRUE(errors::IsPeersTimedOut(heard)) << heard;
  EXPECT_EQ(errors::RanksOf(heard), std::vector<Rank>{kSelf});
}

TEST(PeerDisconnected_AllOtherReasons, ThePeerIsLost) {
  for (const DisconnectReason& reason :
       {DisconnectReason{}, DisconnectReason{DisconnectReason::kClosed, -1},
        DisconnectReason{DisconnectReason::kOther, -1},
        DisconnectReason{DisconnectReason::kPeerLost, kSelf}}) {
    const absl::Status status = Heard(reason.kind, reason.about);
    EXPECT_TRUE(errors::IsPeerLost(status)) << status;
    EXPECT_EQ(errors::RanksOf(status), std::vector<Rank>{kPeer}) << status;
  }
}

}  // namespace
}  // namespace optshard
