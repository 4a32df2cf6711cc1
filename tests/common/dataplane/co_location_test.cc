#include "common/dataplane/co_location.h"

#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/errors.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_rendezvous.h"

namespace optshard {
namespace {

absl::Time In(absl::Duration time) { return Clock::Monotonic().Now() + time; }

RankOffer Offer(const std::string& identity, bool asks_for_gloo, bool has_replica) {
  return {identity, asks_for_gloo, has_replica};
}

TEST(ExchangeOffers_RanksThatDiffer, EveryRankHearsAll) {
  const std::vector<RankOffer> offers = {Offer("a", false, true), Offer("", true, false),
                                         Offer("- GR", true, true)};
  const int world_size = static_cast<int>(offers.size());
  testing::FakeRendezvous rendezvous;
  std::vector<std::thread> ranks;
  for (Rank rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      const absl::StatusOr<std::vector<RankOffer>> heard =
          ExchangeOffers(rendezvous, rank, world_size, offers[rank], In(absl::Seconds(20)));
      ASSERT_TRUE(heard.ok()) << heard.status();
      ASSERT_EQ(heard->size(), offers.size());
      for (size_t i = 0; i < offers.size(); ++i) {
        EXPECT_EQ((*heard)[i].identity, offers[i].identity) << "rank " << rank << " of " << i;
        EXPECT_EQ((*heard)[i].asks_for_gloo, offers[i].asks_for_gloo);
        EXPECT_EQ((*heard)[i].has_replica, offers[i].has_replica);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(ExchangeOffers_RankThatSaysNothing, IsNamed) {
  testing::FakeRendezvous rendezvous;
  ASSERT_TRUE(rendezvous.Put("host/1", "--a").ok());
  const absl::Status late =
      ExchangeOffers(rendezvous, 0, 3, Offer("a", false, true), In(absl::Milliseconds(20)))
          .status();
  EXPECT_TRUE(errors::IsPeersTimedOut(late)) << late;
  EXPECT_EQ(errors::RanksOf(late), std::vector<Rank>{2});
}

TEST(ExchangeOffers_OfferOfAnotherVersion, IsRefusedNamingTheRank) {
  for (const char* text : {"", "G", "xRa", "GGa"}) {
    testing::FakeRendezvous rendezvous;
    ASSERT_TRUE(rendezvous.Put("host/1", text).ok());
    const absl::Status refused =
        ExchangeOffers(rendezvous, 0, 2, Offer("a", false, true), In(absl::Seconds(20))).status();
    EXPECT_TRUE(absl::IsInternal(refused)) << refused;
    EXPECT_NE(refused.message().find("rank 1"), absl::string_view::npos) << refused;
  }
}

TEST(SharingIdentity_OfThisProcess, IsKnownAndStays) {
  EXPECT_FALSE(SharingIdentity().empty());
  EXPECT_EQ(SharingIdentity(), SharingIdentity());
}

TEST(OnOneKernel_NamespacesOrUsersThatDiffer, AreOfOneKernel) {
  const std::string own = SharingIdentity();
  ASSERT_FALSE(own.empty());
  EXPECT_TRUE(OnOneKernel(own, own));
  EXPECT_TRUE(OnOneKernel("net:[1] pid:[2] 11-22 0", "net:[3] pid:[4] 11-22 1000"));
  EXPECT_FALSE(OnOneKernel("net:[1] pid:[2] 11-22 0", "net:[1] pid:[2] 33-44 0"));
  EXPECT_FALSE(OnOneKernel("", ""));
  EXPECT_FALSE(OnOneKernel(own, ""));
}

}  // namespace
}  // namespace optshard
