// Snapshots that several owners agree on, in random orders of events.
#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "server/shard/snapshot/agreed_snapshots.h"
#include "tests/server/shard/snapshot/fake_owner_state.h"
#include "tests/testing/fake_clock.h"

namespace optshard {
namespace {

using testing::After;
using testing::kNow;
using testing::OptionsOf;
using testing::State;

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
    auto opened = owner.agreed->Open(client.id, kNow);
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
