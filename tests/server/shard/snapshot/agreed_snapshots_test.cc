#include "server/shard/snapshot/agreed_snapshots.h"

#include <memory>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/server/shard/snapshot/fake_owner_state.h"
#include "tests/testing/fake_clock.h"

namespace optshard {
namespace {

using testing::After;
using testing::kNow;
using testing::OptionsOf;
using testing::State;

constexpr absl::Duration kLong = absl::Seconds(20);

class AgreedSnapshotsTest : public ::testing::Test {
 protected:
  // A step of this owner alone, whose votes also have `others`.
  void Step(const SnapshotIds& others = {}) {
    agreed_.Vote(CallEffect::kChanges);
    agreed_.TakeVotes({others});
    Apply();
    agreed_.EndCall(After(state_.step));
  }
  void Apply() { ++state_.step; }
  StepNumber OpenedAt(SnapshotId id, absl::Duration patience) {
    const absl::StatusOr<SnapshotMoment> opened = agreed_.Open(id, patience);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? opened->step : ~StepNumber{0};
  }

  State state_;
  FakeClock clock_;
  AgreedSnapshots::Options options_ = [this] {
    AgreedSnapshots::Options options = OptionsOf(&state_);
    options.clock = &clock_;
    return options;
  }();
  AgreedSnapshots agreed_{options_};
};

TEST_F(AgreedSnapshotsTest, BetweenCalls_OpensAtOnce_AndTheNextVoteAloneSaysSo) {
  Step();
  ASSERT_TRUE(agreed_.Prepare(7, {}).ok());
  EXPECT_EQ(OpenedAt(7, kNow), 1);
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), (SnapshotIds{7}));
  agreed_.EndCall(After(state_.step));
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), SnapshotIds());
  Apply();
  agreed_.EndCall(After(state_.step));
  EXPECT_EQ(OpenedAt(7, kNow), 1) << "it stays open";
}

TEST_F(AgreedSnapshotsTest, InACall_TheVotesOfOthersOpen_BeforeAnythingChanges) {
  ASSERT_TRUE(agreed_.Prepare(7, {}).ok());
  agreed_.Vote(CallEffect::kChanges);
  EXPECT_EQ(agreed_.Open(7, kNow).status().code(), absl::StatusCode::kDeadlineExceeded);
  agreed_.TakeVotes({{9, 7}});
  Apply();
  EXPECT_EQ(OpenedAt(7, kNow), 0);
  agreed_.EndCall(After(state_.step));
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), SnapshotIds()) << "all have seen it";
}

TEST_F(AgreedSnapshotsTest, WaitingForTheVotesOfAStep_FollowsAnotherThatHasOpened) {
  Step();
  for (SnapshotId id = 7; id <= 9; ++id) ASSERT_TRUE(agreed_.Prepare(id, {}).ok());
  agreed_.OpenedElsewhere(9, {1, 1});  // before it votes
  agreed_.Vote(CallEffect::kSteps);
  EXPECT_EQ(OpenedAt(9, kNow), 1);
  std::thread waits([this] { EXPECT_EQ(OpenedAt(7, kLong), 1); });
  agreed_.OpenedElsewhere(7, {1, 1});
  waits.join();
  for (const SnapshotMoment& other :
       {SnapshotMoment{1, 2}, SnapshotMoment{1, 0}, SnapshotMoment{1, 1, 1}}) {
    agreed_.OpenedElsewhere(8, other);
    EXPECT_EQ(agreed_.Open(8, kNow).status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  agreed_.TakeVotes({{7, 9}});
  agreed_.OpenedElsewhere(8, {1, 1});
  EXPECT_EQ(agreed_.Open(8, kNow).status().code(), absl::StatusCode::kDeadlineExceeded)
      << "the votes have come without it";
  Apply();
  EXPECT_EQ(OpenedAt(7, kNow), 1);
  agreed_.EndCall(After(state_.step));
  EXPECT_EQ(OpenedAt(8, kNow), 2);
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), (SnapshotIds{8})) << "a vote had the others";
  ASSERT_TRUE(agreed_.Prepare(10, {}).ok());
  agreed_.OpenedElsewhere(10, {1, 2});
  EXPECT_EQ(agreed_.Open(10, kNow).status().code(), absl::StatusCode::kDeadlineExceeded)
      << "what this call leaves may be of the same step, and others have it already";
}

TEST_F(AgreedSnapshotsTest, InACallThatNobodyElseHasOpenedIn_TheEndOpens) {
  ASSERT_TRUE(agreed_.Prepare(7, {}).ok());
  agreed_.Vote(CallEffect::kChanges);
  agreed_.TakeVotes({});
  Apply();
  std::thread waits([this] { EXPECT_EQ(OpenedAt(7, kLong), 1); });
  while (agreed_.Open(7, kNow).status().code() != absl::StatusCode::kDeadlineExceeded) {
  }
  agreed_.EndCall(After(state_.step));
  waits.join();
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), (SnapshotIds{7}));
}

TEST_F(AgreedSnapshotsTest, InACallThatChangesNothing_OpensAtOnce) {
  ASSERT_TRUE(agreed_.Prepare(7, {}).ok());
  EXPECT_EQ(agreed_.Vote(CallEffect::kReads), SnapshotIds());
  EXPECT_TRUE(agreed_.Open(7, kNow).ok());
  agreed_.EndCall(After(state_.step));
  EXPECT_EQ(agreed_.Vote(CallEffect::kReads), (SnapshotIds{7}));
}

TEST_F(AgreedSnapshotsTest, Taken_IsGivenOnce) {
  ASSERT_TRUE(agreed_.Prepare(7, {}).ok());
  EXPECT_EQ((*agreed_.Take(7, kNow))->step(), 0);
  EXPECT_EQ(agreed_.Take(7, kNow).status().code(), absl::StatusCode::kAborted);
}

TEST_F(AgreedSnapshotsTest, NotPrepared_IsAbortedAndIgnoredInVotes) {
  Step({7});
  const absl::Status status = agreed_.Open(7, kLong).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_NE(status.message().find("rank 0 has not prepared snapshot 0000000000000007"),
            std::string::npos)
      << status;
  EXPECT_EQ(agreed_.Prepare(0, {}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(AgreedSnapshotsTest, WhileTheStateIsReplaced_WaitsButNotWhenOthersHaveOpened) {
  state_.is_being_replaced = true;
  ASSERT_TRUE(agreed_.Prepare(7, {}).ok());
  ASSERT_TRUE(agreed_.Prepare(8, {}).ok());
  EXPECT_EQ(agreed_.Open(7, kNow).status().code(), absl::StatusCode::kDeadlineExceeded);
  Step({8});
  state_.is_being_replaced = false;
  EXPECT_EQ(OpenedAt(7, kNow), 1);
  EXPECT_EQ(agreed_.Open(8, kNow).status().code(), absl::StatusCode::kAborted);
}

TEST_F(AgreedSnapshotsTest, WhileOthersHaveTheMemory_WaitsAndSaysSo) {
  state_.error = absl::ResourceExhaustedError("others have it");
  ASSERT_TRUE(agreed_.Prepare(7, {}).ok());
  ASSERT_TRUE(agreed_.Prepare(8, {}).ok());
  const absl::Status waits = agreed_.Open(7, kNow).status();
  EXPECT_EQ(waits.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(waits.message().find("others have it"), std::string::npos) << waits;
  Step({8});
  EXPECT_EQ(agreed_.Open(8, kNow).status().code(), absl::StatusCode::kAborted);
  state_.error = absl::OkStatus();
  EXPECT_EQ(OpenedAt(7, kNow), 1);
}

TEST_F(AgreedSnapshotsTest, DeviceHasFailed_IsSaidAtOnce) {
  state_.error = absl::DataLossError("the device has failed");
  ASSERT_TRUE(agreed_.Prepare(7, {}).ok());
  const absl::Status failed = state_.error;
  EXPECT_EQ(agreed_.Open(7, kLong).status(), failed);
  state_.error = absl::OkStatus();
  EXPECT_EQ(agreed_.Open(7, kNow).status(), failed);
}

TEST_F(AgreedSnapshotsTest, MoreThanAVoteHolds_AreRefusedAtOnceUntilTheNextOne) {
  for (SnapshotId id = 1; id <= 5; ++id) ASSERT_TRUE(agreed_.Prepare(id, {}).ok());
  for (SnapshotId id = 1; id <= 4; ++id) EXPECT_EQ(OpenedAt(id, kNow), 0);
  const absl::Status refused = agreed_.Open(5, kLong).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAborted);
  EXPECT_NE(refused.message().find("after the next step"), std::string::npos) << refused;
  Step();
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), SnapshotIds()) << "nobody waits for it";
  agreed_.EndCall(After(state_.step));
  EXPECT_EQ(OpenedAt(5, kNow), 1);
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), (SnapshotIds{5}));
}

TEST_F(AgreedSnapshotsTest, WhereNobodyVotes_WhatIsForgottenMakesRoom) {
  for (SnapshotId id = 1; id <= 20; ++id) {
    ASSERT_TRUE(agreed_.Prepare(id, {}).ok());
    EXPECT_TRUE(agreed_.Take(id, kNow).ok());
    if (id <= 17) agreed_.Forget(id);
  }
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), (SnapshotIds{18, 19, 20}));
}

TEST_F(AgreedSnapshotsTest, WhatIsTaken_KeepsItsPlaceAsLongAsOthersMayOpenIt) {
  for (SnapshotId id = 1; id <= 5; ++id) ASSERT_TRUE(agreed_.Prepare(id, {}).ok());
  for (SnapshotId id = 1; id <= 4; ++id) EXPECT_TRUE(agreed_.Take(id, kNow).ok());
  EXPECT_EQ(agreed_.Take(5, kNow).status().code(), absl::StatusCode::kAborted);
  clock_.Advance(absl::Minutes(1));
  ASSERT_TRUE(agreed_.Prepare(5, {}).ok());
  EXPECT_TRUE(agreed_.Take(5, kNow).ok());
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), (SnapshotIds{2, 3, 4, 5}));
}

TEST_F(AgreedSnapshotsTest, NumbersThatAreUsedAgain_TakeNoRoomFromOthers) {
  for (SnapshotId id = 1; id <= 4; ++id) {
    ASSERT_TRUE(agreed_.Prepare(id, {}).ok());
    EXPECT_TRUE(agreed_.Take(id, kNow).ok());
  }
  for (SnapshotId id = 1; id <= 5; ++id) ASSERT_TRUE(agreed_.Prepare(id, {}).ok());
  EXPECT_TRUE(agreed_.Take(5, kNow).ok());
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), (SnapshotIds{5}));
}

TEST_F(AgreedSnapshotsTest, NobodyOpens_IsForgottenAfterAMinute) {
  for (SnapshotId id = 1; id <= 16; ++id) ASSERT_TRUE(agreed_.Prepare(id, {}).ok());
  EXPECT_TRUE(agreed_.Prepare(1, {}).ok()) << "the same again";
  EXPECT_EQ(agreed_.Prepare(17, {}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(OpenedAt(1, kNow), 0);
  clock_.Advance(absl::Seconds(59));
  EXPECT_EQ(OpenedAt(2, kNow), 0);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(agreed_.Prepare(17, {}).ok());
  EXPECT_EQ(agreed_.Open(3, kNow).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(agreed_.Open(1, kNow).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(OpenedAt(2, kNow), 0) << "a minute from when it was opened";
}

TEST_F(AgreedSnapshotsTest, Forgotten_MakesRoomAndWakesWhoWaits) {
  ASSERT_TRUE(agreed_.Prepare(7, {}).ok());
  agreed_.Vote(CallEffect::kChanges);
  std::thread waits(
      [this] { EXPECT_EQ(agreed_.Open(7, kLong).status().code(), absl::StatusCode::kAborted); });
  agreed_.Forget(7);
  waits.join();
  agreed_.Forget(7);
}

TEST_F(AgreedSnapshotsTest, Ended_AllHaveTheReason) {
  ASSERT_TRUE(agreed_.Prepare(7, {}).ok());
  agreed_.Vote(CallEffect::kChanges);
  std::thread waits(
      [this] { EXPECT_EQ(agreed_.Open(7, kLong).status(), absl::DataLossError("torn")); });
  agreed_.End(absl::DataLossError("torn"));
  agreed_.End(absl::AbortedError("later"));
  waits.join();
  agreed_.EndCall(After(state_.step));
  EXPECT_EQ(agreed_.Prepare(8, {}), absl::DataLossError("torn"));
}

TEST_F(AgreedSnapshotsTest, OfAStepToCome_IsOpenedWhenThatIsFinished) {
  const auto prepare = [&](SnapshotId id, StepNumber step) {
    return agreed_.Prepare(id, {}, SnapshotLife::kUntilForgotten, step).code();
  };
  ASSERT_EQ(prepare(7, 2), absl::StatusCode::kOk);
  const absl::Status early = agreed_.Open(7, kNow).status();
  EXPECT_EQ(early.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(early.message().find("step 2 was awaited, and step 0 is the last one"),
            std::string::npos)
      << early;
  Step();
  std::thread waits([this] { EXPECT_EQ(OpenedAt(7, kLong), 2); });
  Step({7});
  waits.join();
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), SnapshotIds()) << "nobody has to be told";
  EXPECT_EQ(prepare(8, 2), absl::StatusCode::kAborted) << "the owner is in step 3";
  EXPECT_EQ(prepare(9, 3), absl::StatusCode::kOk);
  Apply();
  agreed_.EndCall(After(state_.step));
  EXPECT_EQ(OpenedAt(9, kNow), 3);
  EXPECT_EQ(prepare(10, 3), absl::StatusCode::kAborted)
      << "what others opened at its end may have been replaced since";
  EXPECT_EQ(prepare(11, 2), absl::StatusCode::kAborted);
}

TEST_F(AgreedSnapshotsTest, OfAStepToCome_OneThatIsJumpedOverOrBeingReplaced_IsMissed) {
  ASSERT_TRUE(agreed_.Prepare(7, {}, SnapshotLife::kLimited, 5).ok());
  ASSERT_TRUE(agreed_.Prepare(8, {}, SnapshotLife::kLimited, 1).ok());
  state_.is_being_replaced = true;
  Step();
  state_.is_being_replaced = false;
  EXPECT_EQ(agreed_.Open(8, kLong).status().code(), absl::StatusCode::kAborted);
  state_.step = 6;
  agreed_.EndCall(After(6));
  EXPECT_EQ(agreed_.Open(7, kLong).status().code(), absl::StatusCode::kAborted);
}

TEST_F(AgreedSnapshotsTest, BeforeTheParametersHaveValues_WaitsForThem) {
  agreed_.Begin({0, false, nullptr});
  ASSERT_TRUE(agreed_.Prepare(7, {}).ok());
  const absl::Status early = agreed_.Open(7, kNow).status();
  EXPECT_EQ(early.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(early.message().find("had no values yet"), std::string::npos) << early;
  std::thread waits([this] { EXPECT_TRUE(agreed_.Open(7, kLong).ok()); });
  agreed_.Vote(CallEffect::kChanges);
  agreed_.TakeVotes({});
  agreed_.EndCall({0, false, nullptr});
  EXPECT_EQ(agreed_.Open(7, kNow).status().code(), absl::StatusCode::kDeadlineExceeded)
      << "the ranks did not synchronise";
  agreed_.Vote(CallEffect::kChanges);
  agreed_.EndCall({0, true, nullptr});
  waits.join();
}

TEST_F(AgreedSnapshotsTest, KeptUntilForgotten_HasNoEnd) {
  ASSERT_TRUE(agreed_.Prepare(7, {}, SnapshotLife::kUntilForgotten).ok());
  clock_.Advance(absl::Hours(24));
  EXPECT_EQ(OpenedAt(7, kNow), 0);
  clock_.Advance(absl::Hours(24));
  EXPECT_TRUE(agreed_.Take(7, kNow).ok());
}

TEST_F(AgreedSnapshotsTest, SomebodyAsksForIt_IsNotForgottenMeanwhile) {
  ASSERT_TRUE(agreed_.Prepare(7, {}).ok());
  agreed_.Vote(CallEffect::kChanges);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(agreed_.Open(7, kNow).status().code(), absl::StatusCode::kDeadlineExceeded);
    clock_.Advance(absl::Seconds(59));
  }
  Apply();
  agreed_.EndCall(After(state_.step));
  EXPECT_EQ(OpenedAt(7, kNow), 1);
}

TEST_F(AgreedSnapshotsTest, NoMemory_IsSaidAndNothingIsKept) {
  options_.prepare = [](const SnapshotContents&) {
    return absl::ResourceExhaustedError("no memory");
  };
  AgreedSnapshots agreed(options_);
  EXPECT_EQ(agreed.Prepare(7, {}), absl::ResourceExhaustedError("no memory"));
  EXPECT_EQ(agreed.Open(7, kNow).status().code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace optshard
