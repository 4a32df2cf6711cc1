#include "server/shard/snapshot/agreed_snapshots.h"

#include <algorithm>
#include <functional>
#include <iterator>
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
  uint64_t skipped = 0;
  Generation content = 1;  // which values there are: a snapshot tells it as its generation
  bool is_changing = false;
  bool is_being_replaced = false;
};

class FakeSnapshot final : public ShardSnapshot {
 public:
  explicit FakeSnapshot(const State& state) : step_(state.step), content_(state.content) {}
  StepNumber step() const override { return step_; }
  Generation generation() const override { return content_; }
  absl::Span<const Hyperparameters> hyperparameters() const override { return {}; }
  absl::string_view blob() const override { return ""; }
  const std::vector<Part>& parts() const override { return parts_; }
  PartState state(int) const override { return PartState::kKept; }
  Bytes Read(int, int64_t, int64_t) const override { return {}; }
  Bytes ReadKept(int, KeptArray, int64_t, int64_t) const override { return {}; }
  void Close() override {}

 private:
  const StepNumber step_;
  const Generation content_;
  const std::vector<Part> parts_;
};

class FakePrepared final : public PreparedSnapshot {
 public:
  explicit FakePrepared(const State* state) : state_(*state) {}
  std::unique_ptr<ShardSnapshot> TryOpen(const BetweenCalls&) override {
    EXPECT_FALSE(state_.is_changing) << "opened in the middle of a step";
    if (state_.is_being_replaced) return nullptr;
    return std::make_unique<FakeSnapshot>(state_);
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

BetweenCalls After(StepNumber finished, uint64_t skipped = 0) {
  BetweenCalls now;
  now.finished = finished;
  now.skipped = skipped;
  return now;
}

constexpr absl::Duration kNow = absl::ZeroDuration();
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

// Owners that make their calls in any order that the votes allow, and clients that prepare a
// snapshot at every owner, and then open or take it there, at any moment: one event after the
// other, chosen at random. Clients also give up, and may find that theirs was forgotten; then they
// begin again with another id.
class Model {
 public:
  Model(uint32_t seed, int owners, int clients) : random_(seed), owners_(owners) {
    for (Owner& owner : owners_) {
      AgreedSnapshots::Options options = OptionsOf(&owner.state);
      options.clock = &clock_;
      owner.agreed = std::make_unique<AgreedSnapshots>(options);
    }
    for (int i = 0; i < clients; ++i) clients_.push_back(NewClient());
  }

  void Run(int events) {
    for (int i = 0; i < events; ++i) {
      const size_t what = Random(12);
      if (what == 0) {
        // A few make those forgotten that are not asked for.
        clock_.Advance(absl::Seconds(Random(20)));
      } else if (what < 5) {
        AskSomething(clients_[Random(clients_.size())], owners_[Random(owners_.size())]);
      } else {
        Go(owners_[Random(owners_.size())]);
      }
    }
    // What is asked for everywhere is opened in the end, as long as all go on.
    is_ending_ = true;
    for (int i = 0; i < 20 && !AllAreDone(); ++i) {
      for (Client& client : clients_) {
        for (Owner& owner : owners_) AskSomething(client, owner);
      }
      const size_t last = RoundsDone() + 2;
      while (RoundsDone() < last) {
        for (Owner& owner : owners_) Go(owner);
      }
    }
    EXPECT_TRUE(AllAreDone());
  }

  int failures() const { return failures_; }  // of clients, which begin again

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
    // What becomes of it. A call that reads, and a step that is refused, change nothing.
    enum class End { kReads, kRefused, kSkipped, kApplied, kSynchronised, kLoaded };
    End end = End::kRefused;
    bool keeps_step = false;  // what is loaded is of the same step, not of one long ago

    CallEffect effect() const {
      if (end == End::kReads) return CallEffect::kReads;
      const bool is_other = end == End::kSynchronised || end == End::kLoaded;
      return is_other ? CallEffect::kChanges : CallEffect::kSteps;
    }
  };
  struct Client {
    SnapshotId id = 0;
    SnapshotLife life = SnapshotLife::kLimited;
    absl::optional<StepNumber> at_step;
    std::map<const Owner*, bool> prepared;
    std::map<const Owner*, SnapshotMoment> moments;
    absl::Time began;
  };

  size_t Random(size_t below) { return random_() % below; }

  size_t RoundsDone() const {
    size_t least = owners_[0].round;
    for (const Owner& owner : owners_) least = std::min(least, owner.round);
    return least;
  }

  bool AllAreDone() const {
    return std::all_of(clients_.begin(), clients_.end(), [this](const Client& client) {
      return client.moments.size() == owners_.size();
    });
  }

  Client NewClient() {
    Client client;
    client.id = ++last_id_;
    client.life = Random(2) == 0 ? SnapshotLife::kLimited : SnapshotLife::kUntilForgotten;
    client.began = clock_.Now();
    if (Random(3) == 0) client.at_step = owners_[0].state.step + Random(3);
    return client;
  }

  void BeginAgain(Client& client) {
    for (Owner& owner : owners_) owner.agreed->Forget(client.id);
    client = NewClient();
  }

  void Go(Owner& owner) {
    if (owner.round == rounds_.size()) {
      using End = Round::End;
      constexpr End kEnds[] = {End::kReads,   End::kReads,   End::kRefused,      End::kSkipped,
                               End::kApplied, End::kApplied, End::kSynchronised, End::kLoaded};
      Round next;
      next.end = kEnds[Random(std::size(kEnds))];
      if (next.end == End::kLoaded && is_ending_) next.end = End::kApplied;
      next.keeps_step = Random(2) == 0;
      rounds_.push_back(next);
    }
    Round& round = rounds_[owner.round];
    const bool is_loaded = round.end == Round::End::kLoaded;
    if (owner.at == At::kBetween) {
      if (is_loaded && !owner.state.is_being_replaced) {
        owner.state.is_being_replaced = true;
        return;
      }
      round.votes.push_back(owner.agreed->Vote(round.effect()));
      owner.at = At::kHasVoted;
    } else if (owner.at == At::kHasVoted && round.votes.size() == owners_.size()) {
      owner.agreed->TakeVotes(round.votes);
      owner.at = At::kChanges;
      owner.state.is_changing = Changes(round);
    } else if (owner.at == At::kChanges) {
      if (round.end == Round::End::kApplied) ++owner.state.step;
      if (round.end == Round::End::kSkipped) ++owner.state.skipped;
      if (is_loaded) owner.state.skipped = 0;
      if (is_loaded && !round.keeps_step) owner.state.step = 1000 * owner.round;
      if (Changes(round)) owner.state.content = 2 + owner.round;
      owner.state.is_changing = false;
      owner.state.is_being_replaced = false;
      owner.agreed->EndCall(After(owner.state.step, owner.state.skipped));
      owner.at = At::kBetween;
      ++owner.round;
    }
  }

  static bool Changes(const Round& round) {
    return round.end != Round::End::kReads && round.end != Round::End::kRefused;
  }

  void AskSomething(Client& client, Owner& owner) {
    if (client.moments.size() == owners_.size()) {
      ExpectOneStep(client);
      if (!is_ending_) BeginAgain(client);
      return;
    }
    // Nobody waits for a snapshot for as long as one is kept.
    const bool is_late = clock_.Now() - client.began > absl::Seconds(50);
    if (!is_ending_ && (is_late || Random(20) == 0)) return BeginAgain(client);
    if (client.prepared.size() < owners_.size()) {
      const absl::Status prepared =
          owner.agreed->Prepare(client.id, {}, client.life, client.at_step);
      if (!prepared.ok()) return BeginAgain(client);
      client.prepared[&owner] = true;
      return;
    }
    if (client.moments.count(&owner) > 0) return;
    if (!client.moments.empty() && Random(2) == 0) {
      owner.agreed->OpenedElsewhere(client.id, client.moments.begin()->second);
    }
    const absl::StatusOr<SnapshotMoment> moment = Get(client, owner);
    if (absl::IsDeadlineExceeded(moment.status())) return;
    if (moment.ok()) {
      client.moments[&owner] = *moment;
    } else {
      EXPECT_TRUE(absl::IsAborted(moment.status())) << moment.status();
      ++failures_;
      BeginAgain(client);
    }
  }

  absl::StatusOr<SnapshotMoment> Get(const Client& client, Owner& owner) {
    const auto opened = owner.agreed->Open(client.id, kNow);
    if (!opened.ok() || Random(2) == 0) return opened;
    const auto taken = owner.agreed->Take(client.id, kNow);
    if (!taken.ok()) return taken.status();
    EXPECT_EQ((*taken)->step(), opened->step);
    return opened;
  }

  void ExpectOneStep(const Client& client) const {
    const SnapshotMoment& first = client.moments.begin()->second;
    EXPECT_EQ(first.step, client.at_step.value_or(first.step));
    for (const auto& [owner, moment] : client.moments) {
      EXPECT_EQ(moment.step, first.step) << "snapshot " << client.id;
      EXPECT_EQ(moment.generation, first.generation) << "other values, snapshot " << client.id;
    }
  }

  std::mt19937 random_;
  FakeClock clock_;
  std::vector<Owner> owners_;
  std::vector<Round> rounds_;
  std::vector<Client> clients_;
  SnapshotId last_id_ = 0;
  int failures_ = 0;
  bool is_ending_ = false;
};

TEST(AgreedSnapshotsModelTest, AnyOrderOfEvents_AllOwnersOpenAtTheSameStep) {
  int failures = 0;
  for (uint32_t seed = 0; seed < 2000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Model model(seed, 1 + seed % 4, 1 + seed % 7);
    model.Run(20 + seed % 400);
    failures += model.failures();
  }
  EXPECT_GT(failures, 100) << "not much went wrong";
}

}  // namespace
}  // namespace optshard
