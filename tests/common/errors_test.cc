#include "common/errors.h"

#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace optshard::errors {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Case {
  const char* name;
  absl::Status status;
  absl::StatusCode code;
  bool (*is)(const absl::Status&);
  std::vector<Rank> ranks;
  std::vector<std::string> says;
};

std::vector<Case> AllKinds() {
  using Code = absl::StatusCode;
  return {
      {"PeerLost",
       PeerLost(3, "its connection was reset"),
       Code::kUnavailable,
       IsPeerLost,
       {3},
       {"rank 3", "its connection was reset"}},
      {"PeersTimedOut",
       PeersTimedOut({1, 4}, "reduce of bucket 7"),
       Code::kDeadlineExceeded,
       IsPeersTimedOut,
       {1, 4},
       {"ranks 1, 4", "reduce of bucket 7"}},
      {"TrainerGone",
       TrainerGone({2}, "process 7 has ended"),
       Code::kUnavailable,
       IsTrainerGone,
       {2},
       {"trainer of rank 2", "process 7 has ended"}},
      {"OwnerAway",
       OwnerAway({5}, "its server restarts"),
       Code::kUnavailable,
       IsOwnerAway,
       {5},
       {"rank 5", "its server restarts"}},
      {"TornStep",
       TornStep(9, "rank 2 is lost"),
       Code::kDataLoss,
       IsTornStep,
       {},
       {"step 9", "rank 2 is lost", "restore"}},
      {"StepInDoubt",
       StepInDoubt(9, "rank 2 is lost"),
       Code::kDataLoss,
       IsStepInDoubt,
       {},
       {"step 9", "rank 2 is lost", "restore"}},
      {"StaleGeneration",
       StaleGeneration(4, 6),
       Code::kFailedPrecondition,
       IsStaleGeneration,
       {},
       {"generation 4", "current one is 6"}},
      {"StaleIncarnation",
       StaleIncarnation(2, 1, 5),
       Code::kFailedPrecondition,
       IsStaleIncarnation,
       {2},
       {"incarnation 1", "rank 2", "current one is 5"}},
      {"RanksDisagree",
       RanksDisagree({0, 2}, "lr of group 1"),
       Code::kInvalidArgument,
       IsRanksDisagree,
       {0, 2},
       {"ranks 0, 2", "lr of group 1"}},
  };
}

TEST(Errors, StaleIncarnationWhereNobodyIsIn_NamesNoSuccessor) {
  const absl::Status status = StaleIncarnation(2, (Incarnation{1763782129123} << 20) | 3, 0);
  EXPECT_TRUE(IsStaleIncarnation(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("incarnation 1763782129123.3"), HasSubstr("nobody of this rank"),
                    Not(HasSubstr("successor"))));
}

TEST(Errors, Kind_Each_MatchesItsPredicateAloneAndNamesItsRanks) {
  const std::vector<Case> cases = AllKinds();
  for (const Case& made : cases) {
    SCOPED_TRACE(made.name);
    EXPECT_EQ(made.status.code(), made.code);
    EXPECT_EQ(RanksOf(made.status), made.ranks);
    for (const std::string& part : made.says) {
      EXPECT_THAT(std::string(made.status.message()), HasSubstr(part));
    }
    for (const Case& asked : cases) {
      EXPECT_EQ(asked.is(made.status), &asked == &made) << asked.name;
    }
  }
}

TEST(Errors, Message_SameTextAndCodeWithoutPayload_IsNoneOfThem) {
  for (const Case& made : AllKinds()) {
    const absl::Status imitation(made.code, made.status.message());
    for (const Case& asked : AllKinds()) EXPECT_FALSE(asked.is(imitation)) << asked.name;
    EXPECT_THAT(RanksOf(imitation), IsEmpty());
    EXPECT_EQ(EncodePayload(imitation), "");
  }
}

TEST(Errors, Ok_Asked_IsNoneOfThem) {
  for (const Case& asked : AllKinds()) EXPECT_FALSE(asked.is(absl::OkStatus())) << asked.name;
  EXPECT_THAT(RanksOf(absl::OkStatus()), IsEmpty());
}

TEST(Errors, Payload_CarriedOver_KeepsKindAndRanks) {
  for (const Case& made : AllKinds()) {
    SCOPED_TRACE(made.name);
    absl::Status received(made.status.code(), made.status.message());
    AttachPayload(received, EncodePayload(made.status));
    EXPECT_EQ(received, made.status);
    EXPECT_TRUE(made.is(received));
    EXPECT_EQ(RanksOf(received), made.ranks);
  }
}

TEST(Errors, WithContext_OnEachKind_PrefixesTheMessageAndKeepsTheRest) {
  for (const Case& made : AllKinds()) {
    SCOPED_TRACE(made.name);
    const absl::Status wrapped = WithContext(made.status, "step 12, rank 0");
    EXPECT_EQ(wrapped.code(), made.code);
    EXPECT_EQ(std::string(wrapped.message()),
              "step 12, rank 0: " + std::string(made.status.message()));
    EXPECT_TRUE(made.is(wrapped));
    EXPECT_EQ(RanksOf(wrapped), made.ranks);
  }
}

TEST(Errors, WithContext_ForeignPayload_StaysToo) {
  absl::Status status = PeerLost(1, "killed");
  status.SetPayload("other.example/type", absl::Cord("bytes"));
  const absl::Status wrapped = WithContext(status, "here");
  EXPECT_EQ(wrapped.GetPayload("other.example/type"), absl::Cord("bytes"));
  EXPECT_TRUE(IsPeerLost(wrapped));
}

TEST(Errors, WithContext_Ok_StaysOk) { EXPECT_TRUE(WithContext(absl::OkStatus(), "here").ok()); }

TEST(Errors, AttachPayload_Garbage_ChangesNothing) {
  for (const char* garbage :
       {"", ":", "peer_lost", "peer_lost:x", "peer_lost:-1", "peer_lost: 1", "peer_lost:1,",
        "peer_lost:,1", "peer_lost:01", "peer_lost:+1", "peer_lost:2147483648", "peer_lost:1:2",
        "unknown_kind:1", "PEER_LOST:1", "\xff\xfe:1"}) {
    absl::Status status = absl::UnavailableError("a foreign error");
    AttachPayload(status, garbage);
    EXPECT_EQ(status, absl::UnavailableError("a foreign error")) << garbage;
  }
}

TEST(Errors, AttachPayload_OfAnotherCode_ChangesNothing) {
  absl::Status status = absl::InternalError("a foreign error");
  AttachPayload(status, EncodePayload(PeerLost(1, "killed")));
  EXPECT_EQ(status, absl::InternalError("a foreign error"));
  absl::Status ok;
  AttachPayload(ok, EncodePayload(PeerLost(1, "killed")));
  EXPECT_TRUE(ok.ok());
}

TEST(Errors, AttachPayload_RandomBytes_AreReadOrLeftNeverMisread) {
  const uint64_t seed = 42;
  std::mt19937_64 random(seed);
  const std::string valid = EncodePayload(PeersTimedOut({0, 12, 345}, "x"));
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = valid;
    for (uint64_t k = 1 + random() % 3; k > 0; --k) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(random() % (bytes.size() + 1));
    absl::Status status = absl::DeadlineExceededError("late");
    AttachPayload(status, bytes);
    const std::string kept = EncodePayload(status);
    EXPECT_TRUE(kept.empty() || kept == bytes) << "seed " << seed << " round " << round;
    for (Rank rank : RanksOf(status)) EXPECT_GE(rank, 0) << "seed " << seed << " round " << round;
  }
}

TEST(Errors, ManyRanks_Message_NamesTheFirstAndCountsTheRest) {
  std::vector<Rank> ranks(17);
  std::iota(ranks.begin(), ranks.end(), 100);
  const absl::Status status = PeersTimedOut(ranks, "barrier");
  EXPECT_THAT(std::string(status.message()), HasSubstr("ranks 100, 101, "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(", 115 and 1 more: barrier"));
  EXPECT_EQ(RanksOf(status), ranks);
}

TEST(Errors, EncodePayload_WithinFewerBytes_KeepsTheFirstRanks) {
  const absl::Status status = PeersTimedOut({1, 23, 456}, "barrier");
  EXPECT_EQ(EncodePayload(status, 24), "peers_timed_out:1,23,456");
  EXPECT_EQ(EncodePayload(status, 23), "peers_timed_out:1,23");
  EXPECT_EQ(EncodePayload(status, 20), "peers_timed_out:1,23");
  EXPECT_EQ(EncodePayload(status, 19), "peers_timed_out:1");
  EXPECT_EQ(EncodePayload(status, 16), "peers_timed_out:");
}

TEST(Errors, OnePeerLate_Message_SaysRankNotRanks) {
  EXPECT_THAT(std::string(PeersTimedOut({5}, "barrier").message()),
              HasSubstr("waiting for rank 5: barrier"));
  EXPECT_THAT(std::string(RanksDisagree({5}, "lr").message()), HasSubstr("rank 5 differs"));
}

}  // namespace
}  // namespace optshard::errors
