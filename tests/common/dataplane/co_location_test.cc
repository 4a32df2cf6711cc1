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

// What every rank is told, given what each says.
std::vector<bool> Told(const std::vector<std::string>& identities) {
  testing::FakeRendezvous rendezvous;
  const int world_size = static_cast<int>(identities.size());
  std::vector<int> told(identities.size());
  std::vector<std::thread> ranks;
  for (Rank rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      const absl::StatusOr<bool> all =
          AllShareOneHost(rendezvous, rank, world_size, identities[rank], In(absl::Seconds(20)));
      ASSERT_TRUE(all.ok()) << all.status();
      told[rank] = *all ? 1 : 0;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return {told.begin(), told.end()};
}

TEST(CoLocation_SameIdentities, AllShare) {
  EXPECT_EQ(Told({"a", "a", "a"}), std::vector<bool>(3, true));
}

TEST(CoLocation_OneElsewhere_NobodyShares, ForAnyRank) {
  for (int odd = 0; odd < 3; ++odd) {
    std::vector<std::string> identities(3, "a");
    identities[odd] = "b";
    EXPECT_EQ(Told(identities), std::vector<bool>(3, false)) << "rank " << odd;
    identities[odd] = "";
    EXPECT_EQ(Told(identities), std::vector<bool>(3, false)) << "rank " << odd;
  }
  EXPECT_EQ(Told({"", "", ""}), std::vector<bool>(3, false));
}

TEST(CoLocation_RankThatSaysNothing, IsNamed) {
  testing::FakeRendezvous rendezvous;
  ASSERT_TRUE(rendezvous.Put("host/1", "a").ok());
  const absl::Status late =
      AllShareOneHost(rendezvous, 0, 3, "a", In(absl::Milliseconds(20))).status();
  EXPECT_TRUE(errors::IsPeersTimedOut(late)) << late;
  EXPECT_EQ(errors::RanksOf(late), std::vector<Rank>{2});
}

TEST(SharingIdentity_OfThisProcess, IsKnownAndStays) {
  EXPECT_FALSE(SharingIdentity().empty());
  EXPECT_EQ(SharingIdentity(), SharingIdentity());
}

}  // namespace
}  // namespace optshard
