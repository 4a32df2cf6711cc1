#include "server/shard/snapshot/agreed_snapshots.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"

namespace optshard {
namespace {

// What an owner has: the number of the steps that it has applied.
struct State {
  StepNumber step = 0;
  bool is_changing = false;
  bool is_being_replaced = false;
};

class FakeSnapshot final : public ShardSnapshot {
 public:
  explicit FakeSnapshot(StepNumber step) : step_(step) {}
  StepNumber step() const override { return step_; }
  Generation generation() const override { return 1; }
  const std::vector<Part>& parts() const override { return parts_; }
  PartState state(int) const override { return PartState::kKept; }
  Bytes Read(int, int64_t, int64_t) const override { return {}; }
  Bytes ReadKept(int, KeptArray, int64_t, int64_t) const override { return {}; }
  void Close() override {}

 private:
  const StepNumber step_;
  const std::vector<Part> parts_;
};

class FakePrepared final : public PreparedSnapshot {
 public:
  explicit FakePrepared(const State* state) : state_(*state) {}
  std::unique_ptr<ShardSnapshot> TryOpen() override {
    EXPECT_FALSE(state_.is_changing) << "opened in the middle of a step";
    if (state_.is_being_replaced) return nullptr;
    return std::make_unique<FakeSnapshot>(state_.step);
  }

 private:
  const State& state_;
};

AgreedSnapshots::Options OptionsOf(const State* state) {
  AgreedSnapshots::Options options;
  options.prepare =
      [state](const SnapshotContents&) -> absl::StatusOr<std::unique_ptr<PreparedSnapshot>> {
    return std::make_unique<FakePrepared>(state);
  };
  return options;
}

constexpr absl::Duration kNow = absl::ZeroDuration();
constexpr absl::Duration kLong = absl::Seconds(20);

class AgreedSnapshotsTest : public ::testing::Test {
 protected:
  // A step of this owner alone, whose votes also have `others`.
  void Step(const SnapshotIds& others = {}) {
    agreed_.Vote(CallEffect::kChanges);
    agreed_.TakeVote(others);
    Apply();
    agreed_.EndCall();
  }
  void Apply() { ++state_.step; }

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
  EXPECT_EQ(*agreed_.Open(7, kNow), 1);
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), (SnapshotIds{7}));
  agreed_.EndCall();
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), SnapshotIds());
  Apply();
  agreed_.EndCall();
  EXPECT_EQ(*agreed_.Open(7, kNow), 1) << "it stays open";
}

TEST_F(AgreedSnapshotsTest, InACall_TheVotesOfOthersOpen_BeforeAnythingChanges) {
  ASSERT_TRUE(agreed_.Prepare(7, {}).ok());
  agreed_.Vote(CallEffect::kChanges);
  EXPECT_EQ(agreed_.Open(7, kNow).status().code(), absl::StatusCode::kDeadlineExceeded);
  agreed_.TakeVote({9, 7});
  Apply();
  EXPECT_EQ(*agreed_.Open(7, kNow), 0);
  agreed_.EndCall();
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), SnapshotIds()) << "all have seen it";
}

TEST_F(AgreedSnapshotsTest, InACallThatNobodyElseHasOpenedIn_TheEndOpens) {
  ASSERT_TRUE(agreed_.Prepare(7, {}).ok());
  agreed_.Vote(CallEffect::kChanges);
  agreed_.TakeVote({});
  Apply();
  std::thread waits([this] { EXPECT_EQ(*agreed_.Open(7, kLong), 1); });
  while (agreed_.Open(7, kNow).status().code() != absl::StatusCode::kDeadlineExceeded) {
  }
  agreed_.EndCall();
  waits.join();
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), (SnapshotIds{7}));
}

TEST_F(AgreedSnapshotsTest, InACallThatChangesNothing_OpensAtOnce) {
  ASSERT_TRUE(agreed_.Prepare(7, {}).ok());
  EXPECT_EQ(agreed_.Vote(CallEffect::kReads), SnapshotIds());
  EXPECT_TRUE(agreed_.Open(7, kNow).ok());
  agreed_.EndCall();
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
  EXPECT_EQ(*agreed_.Open(7, kNow), 1);
  EXPECT_EQ(agreed_.Open(8, kNow).status().code(), absl::StatusCode::kAborted);
}

TEST_F(AgreedSnapshotsTest, MoreThanAVoteHolds_WaitForTheNextOne) {
  for (SnapshotId id = 1; id <= 5; ++id) ASSERT_TRUE(agreed_.Prepare(id, {}).ok());
  for (SnapshotId id = 1; id <= 4; ++id) EXPECT_EQ(*agreed_.Open(id, kNow), 0);
  EXPECT_EQ(agreed_.Open(5, kNow).status().code(), absl::StatusCode::kDeadlineExceeded);
  Step();
  EXPECT_EQ(*agreed_.Open(5, kNow), 1);
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), (SnapshotIds{5}));
}

TEST_F(AgreedSnapshotsTest, WhereNobodyVotes_WhatIsDoneWithMakesRoom) {
  for (SnapshotId id = 1; id <= 20; ++id) {
    ASSERT_TRUE(agreed_.Prepare(id, {}).ok());
    EXPECT_TRUE(agreed_.Take(id, kNow).ok());
  }
  EXPECT_EQ(agreed_.Vote(CallEffect::kChanges), (SnapshotIds{17, 18, 19, 20}));
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
  EXPECT_EQ(*agreed_.Open(1, kNow), 0);
  clock_.Advance(absl::Seconds(59));
  EXPECT_EQ(*agreed_.Open(2, kNow), 0);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(agreed_.Prepare(17, {}).ok());
  EXPECT_EQ(agreed_.Open(3, kNow).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(agreed_.Open(1, kNow).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(*agreed_.Open(2, kNow), 0) << "a minute from when it was opened";
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
  agreed_.EndCall();
  EXPECT_EQ(agreed_.Prepare(8, {}), absl::DataLossError("torn"));
}

TEST_F(AgreedSnapshotsTest, NoMemory_IsSaidAndNothingIsKept) {
  options_.prepare = [](const SnapshotContents&) {
    return absl::ResourceExhaustedError("no memory");
  };
  AgreedSnapshots agreed(options_);
  EXPECT_EQ(agreed.Prepare(7, {}), absl::ResourceExhaustedError("no memory"));
  EXPECT_EQ(agreed.Open(7, kNow).status().code(), absl::StatusCode::kAborted);
}

// Owners that make their calls in any order that the votes allow, and clients that prepare, and
// then open, at every owner at any moment: one event after the other, chosen at random.
class Model {
 public:
  Model(uint32_t seed, int owners, int snapshots) : random_(seed), owners_(owners) {
    for (Owner& owner : owners_) owner.agreed = MakeOwner(&owner.state);
    for (SnapshotId id = 1; id <= static_cast<SnapshotId>(snapshots); ++id) prepared_[id] = {};
  }

  void Run(int events) {
    for (int i = 0; i < events; ++i) {
      Owner& owner = owners_[Random(owners_.size())];
      Random(3) == 0 ? AskSomething(owner) : Go(owner);
    }
    // What is asked for everywhere is opened in the end, as long as all go on.
    for (const auto& [id, steps] : prepared_) {
      for (Owner& owner : owners_) Prepare(owner, id);
    }
    for (int i = 0; i < 3; ++i) {
      for (const auto& [id, steps] : prepared_) {
        for (Owner& owner : owners_) Open(owner, id);
      }
      const int last = rounds_done() + 2;
      while (rounds_done() < last) {
        for (Owner& owner : owners_) Go(owner);
      }
    }
  }

  // By snapshot, the steps at which owners have it.
  std::map<SnapshotId, std::vector<StepNumber>> Steps() {
    std::map<SnapshotId, std::vector<StepNumber>> steps;
    for (const auto& [id, prepared] : prepared_) {
      for (Owner& owner : owners_) {
        const auto opened = owner.agreed->Open(id, absl::ZeroDuration());
        EXPECT_TRUE(opened.ok()) << opened.status();
        steps[id].push_back(opened.value_or(-1));
      }
    }
    return steps;
  }

 private:
  enum class At { kBetween, kHasVoted, kChanges };
  struct Owner {
    State state;
    std::unique_ptr<AgreedSnapshots> agreed;
    At at = At::kBetween;
    size_t round = 0;
  };
  struct Round {
    std::vector<SnapshotIds> votes;
    CallEffect effect = CallEffect::kChanges;
    bool applies = true;  // otherwise it is refused, or reads
  };

  static std::unique_ptr<AgreedSnapshots> MakeOwner(const State* state) {
    return std::make_unique<AgreedSnapshots>(OptionsOf(state));
  }

  size_t Random(size_t below) { return random_() % below; }

  int rounds_done() const {
    size_t least = owners_[0].round;
    for (const Owner& owner : owners_) least = std::min(least, owner.round);
    return static_cast<int>(least);
  }

  void Go(Owner& owner) {
    if (owner.round == rounds_.size()) {
      const bool reads = Random(4) == 0;
      rounds_.push_back(
          {{}, reads ? CallEffect::kReads : CallEffect::kChanges, !reads && Random(4) != 0});
    }
    Round& round = rounds_[owner.round];
    if (owner.at == At::kBetween) {
      round.votes.push_back(owner.agreed->Vote(round.effect));
      owner.at = At::kHasVoted;
    } else if (owner.at == At::kHasVoted && round.votes.size() == owners_.size()) {
      for (const SnapshotIds& vote : round.votes) owner.agreed->TakeVote(vote);
      owner.at = At::kChanges;
      owner.state.is_changing = round.applies;
    } else if (owner.at == At::kChanges) {
      if (round.applies) ++owner.state.step;
      owner.state.is_changing = false;
      owner.agreed->EndCall();
      owner.at = At::kBetween;
      ++owner.round;
    }
  }

  void AskSomething(Owner& owner) {
    const SnapshotId id = 1 + Random(prepared_.size());
    if (prepared_[id].size() < owners_.size()) {
      Prepare(owner, id);
    } else {
      Open(owner, id);
    }
  }

  void Prepare(Owner& owner, SnapshotId id) {
    EXPECT_TRUE(owner.agreed->Prepare(id, {}).ok());
    std::vector<Owner*>& prepared = prepared_[id];
    if (std::find(prepared.begin(), prepared.end(), &owner) == prepared.end()) {
      prepared.push_back(&owner);
    }
  }

  static void Open(Owner& owner, SnapshotId id) {
    owner.agreed->Open(id, absl::ZeroDuration()).status().IgnoreError();
  }

  std::mt19937 random_;
  std::vector<Owner> owners_;
  std::vector<Round> rounds_;
  std::map<SnapshotId, std::vector<Owner*>> prepared_;  // where it is prepared
};

TEST(AgreedSnapshotsModelTest, AnyOrderOfEvents_AllOwnersOpenAtTheSameStep) {
  for (uint32_t seed = 0; seed < 2000 && !::testing::Test::HasFailure(); ++seed) {
    Model model(seed, 1 + seed % 4, 1 + seed % 7);
    model.Run(20 + seed % 200);
    for (const auto& [id, steps] : model.Steps()) {
      for (const StepNumber step : steps) {
        EXPECT_EQ(step, steps[0]) << "snapshot " << id << ", seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace optshard
