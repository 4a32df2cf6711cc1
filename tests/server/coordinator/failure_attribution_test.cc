#include "server/coordinator/failure_attribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "common/errors.h"

namespace optshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);
constexpr absl::Duration kGrace = absl::Milliseconds(500);

Evidence Alive(Rank rank, absl::Time last_heard) {
  Evidence each;
  each.rank = rank;
  each.state = MemberState::kActive;
  each.pulse.last_heard = last_heard;
  return each;
}

Suspicion Lost(Rank reporter, Rank suspect, absl::Time when = kStart) {
  return {reporter, suspect, errors::PeerLost(suspect, "connection reset"), when};
}

TEST(AttributeFailure, NoSuspicion_Waits) {
  EXPECT_FALSE(
      AttributeFailure({}, {Alive(0, kStart), Alive(1, kStart)}, kGrace, kStart + absl::Hours(1)));
}

TEST(AttributeFailure, WithinGrace_Waits) {
  const absl::Time now = kStart + kGrace - absl::Milliseconds(1);
  EXPECT_FALSE(AttributeFailure({Lost(0, 1)}, {Alive(0, now), Alive(1, now)}, kGrace, now));
}

TEST(AttributeFailure, SomebodyNotHeardSince_WaitsPastTheGrace) {
  const absl::Time now = kStart + absl::Seconds(4);
  EXPECT_FALSE(AttributeFailure({Lost(0, 1)},
                                {Alive(0, now), Alive(1, now), Alive(2, kStart - absl::Seconds(1))},
                                kGrace, now));
}

TEST(AttributeFailure, SomebodysSessionBroken_Waits) {
  const absl::Time now = kStart + absl::Seconds(1);
  Evidence broken = Alive(2, now);
  broken.pulse.broken_session = BrokenSession{now, absl::Milliseconds(300)};
  EXPECT_FALSE(AttributeFailure({Lost(0, 1)}, {Alive(0, now), Alive(1, now), broken}, kGrace, now));
}

TEST(AttributeFailure, AllAlive_BlamesTheConnectionToTheSuspect) {
  const absl::Time now = kStart + kGrace;
  const auto failure = AttributeFailure({Lost(0, 1)}, {Alive(0, now), Alive(1, now)}, kGrace, now);
  ASSERT_TRUE(failure.has_value());
  EXPECT_TRUE(errors::IsPeerLost(*failure));
  EXPECT_THAT(errors::RanksOf(*failure), ElementsAre(1));
  EXPECT_THAT(failure->ToString(), HasSubstr("between rank 0 and rank 1 is broken although both"));
}

TEST(AttributeFailure, AllAliveAndTimedOut_StaysATimeout) {
  const absl::Time now = kStart + kGrace;
  const Suspicion late = {0, 1, errors::PeersTimedOut({1}, "step 3"), kStart};
  const auto failure = AttributeFailure({late}, {Alive(0, now), Alive(1, now)}, kGrace, now);
  ASSERT_TRUE(failure.has_value());
  EXPECT_TRUE(errors::IsPeersTimedOut(*failure));
  EXPECT_THAT(errors::RanksOf(*failure), ElementsAre(1));
}

TEST(AttributeFailure, SuspectReportedItself_BlamesWhoDidNot) {
  // Rank 1 does not come; rank 0 waits for it, rank 2 waits for rank 0 and speaks first.
  const absl::Time now = kStart + kGrace;
  const auto failure = AttributeFailure(
      {{2, 0, errors::PeersTimedOut({0}, "step 3"), kStart},
       {0, 1, errors::PeersTimedOut({1}, "step 3"), kStart + absl::Milliseconds(1)}},
      {Alive(0, now), Alive(1, now), Alive(2, now)}, kGrace, now);
  ASSERT_TRUE(failure.has_value());
  EXPECT_THAT(errors::RanksOf(*failure), ElementsAre(1));
}

TEST(AttributeFailure, EachSuspectsTheOther_BlamesTheFirstSuspect) {
  const absl::Time now = kStart + kGrace;
  const auto failure = AttributeFailure({Lost(0, 1), Lost(1, 0, kStart + absl::Milliseconds(1))},
                                        {Alive(0, now), Alive(1, now)}, kGrace, now);
  ASSERT_TRUE(failure.has_value());
  EXPECT_THAT(errors::RanksOf(*failure), ElementsAre(1));
}

TEST(AttributeFailure, OwnErrorOfAReporter_ComesBeforeSuspicionsOfIt) {
  const absl::Time now = kStart + kGrace;
  const Suspicion own = {1, -1, absl::ResourceExhaustedError("no memory"),
                         kStart + absl::Milliseconds(1)};
  const auto failure =
      AttributeFailure({Lost(0, 1), own}, {Alive(0, now), Alive(1, now)}, kGrace, now);
  ASSERT_TRUE(failure.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(*failure));
  EXPECT_THAT(failure->ToString(), HasSubstr("rank 1"));
}

TEST(AttributeFailure, SuspectNobodyAndUnavailable_IsReportedAsSeen) {
  const absl::Time now = kStart + kGrace;
  const auto failure = AttributeFailure({{1, -1, absl::UnavailableError("plane aborted"), kStart}},
                                        {Alive(0, now), Alive(1, now)}, kGrace, now);
  ASSERT_TRUE(failure.has_value());
  EXPECT_TRUE(absl::IsUnavailable(*failure));
  EXPECT_THAT(failure->ToString(), HasSubstr("reported by rank 1"));
}

TEST(AttributeFailure, SuspectHasLeft_IsSaidAtOnce) {
  Evidence left = Alive(1, kStart - absl::Seconds(1));
  left.state = MemberState::kLeft;
  left.finished = 7;
  const auto failure = AttributeFailure({Lost(0, 1)}, {Alive(0, kStart), left}, kGrace, kStart);
  ASSERT_TRUE(failure.has_value());
  EXPECT_TRUE(errors::IsPeerLost(*failure));
  EXPECT_THAT(errors::RanksOf(*failure), ElementsAre(1));
  EXPECT_THAT(failure->ToString(), HasSubstr("left the job after step 7"));
}

TEST(AttributeFailure, LostAndLeftMembers_NeedNotBeHeard) {
  const absl::Time now = kStart + kGrace;
  Evidence gone = Alive(2, kStart - absl::Hours(1));
  gone.state = MemberState::kLeft;
  EXPECT_TRUE(AttributeFailure({Lost(0, 1)}, {Alive(0, now), Alive(1, now), gone}, kGrace, now));
}

TEST(FindDeath, SilenceOfALease_IsDeath) {
  const LivenessOptions options;
  const Pulse pulse{kStart, absl::nullopt};
  EXPECT_FALSE(FindDeath(pulse, options, kStart + options.lease - absl::Milliseconds(1)));
  const auto death = FindDeath(pulse, options, kStart + options.lease);
  ASSERT_TRUE(death.has_value());
  EXPECT_EQ(death->when, kStart);
  EXPECT_THAT(death->how_known, HasSubstr("lease is 5s"));
}

TEST(FindDeath, BrokenSession_IsDeathAfterItsGrace) {
  const LivenessOptions options;
  const absl::Time broken = kStart + absl::Milliseconds(10);
  const Pulse pulse{kStart, BrokenSession{broken, options.session_grace}};
  EXPECT_FALSE(FindDeath(pulse, options, broken + absl::Milliseconds(299)));
  const auto death = FindDeath(pulse, options, broken + absl::Milliseconds(300));
  ASSERT_TRUE(death.has_value());
  EXPECT_EQ(death->when, broken);
}

}  // namespace
}  // namespace optshard
