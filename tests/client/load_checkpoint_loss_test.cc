// A process that is lost in the middle of load_checkpoint(): all ranks end with the new state, or
// all are told, and the call made again goes on from the checkpoint.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/owner/client_seams.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "common/errors.h"
#include "tests/client/attached_options.h"
#include "tests/client/lost_process.h"
#include "tests/client/tensors.h"
#include "tests/client/written_checkpoint.h"
#include "tests/server/node/kept_server.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/fake_plane.h"
#include "tests/testing/forwarding_owner.h"

namespace optshard {
namespace {

using ::testing::AnyOf;
using testing::ErrorOf;
using testing::ExpectAllOk;
using testing::FakeHub;
using testing::ForwardingOwner;
using ::testing::HasSubstr;
using testing::LoseInACall;
using testing::LossOutcome;
using testing::LossPlan;
using testing::LossTrainer;
using testing::NodeRig;
using testing::Victim;
using Trainer = testing::LossTrainer;

constexpr int kRanks = LossTrainer::kRanks;
constexpr int kSaved = 2;  // the checkpoint's step
constexpr int kLast = LossPlan::kLast;
constexpr char kName[] = "step-000000000002";

// A checkpoint of step kSaved, and what a job has that was never disturbed.
struct Saved {
  std::string root = testing::NewCheckpointRoot();
  std::vector<std::string> expected;  // after kLast
};
const Saved& TheSaved() {
  static const Saved* const saved = [] {
    auto* const made = new Saved;
    testing::WrittenCheckpoint checkpoint(made->root);
    ExpectAllOk(testing::RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
      Trainer trainer(options);
      trainer.StepTo(kSaved);
      checkpoint.WriteShare(trainer.optimizer(), trainer.parameters(), "blob");
      trainer.StepTo(kLast);
      const std::vector<std::string> state = trainer.State();
      if (options.rank == 0) made->expected = state;
      trainer.optimizer().Close();
    }));
    checkpoint.Commit();
    return made;
  }();
  return *saved;
}

// --- Embedded: the plane loses the rank at each of its operations in the call.

TEST(LoadCheckpointLoss, EmbeddedRankAtAnyExchange_IsNamedAndNewOnesGoOn) {
  const std::string& root = TheSaved().root;
  const auto job = [&](Rank victim, int64_t operation) {
    FakeHub::Options hub_options;
    hub_options.world_size = kRanks;
    FakeHub hub(hub_options);
    bool lost = true;
    testing::RunRanks(hub, kRanks, [&](const ShardedOptimizerOptions& options) {
      Trainer trainer(options);
      trainer.StepTo(1);
      if (options.rank == victim) hub.KillAt(victim, hub.OperationsStarted(victim) + operation);
      const absl::Status loaded = ErrorOf([&] { trainer.optimizer().load_checkpoint(root); });
      // One that dies right after has loaded all the same.
      const absl::Status next = ErrorOf([&] { trainer.StepTo(kLast); });
      if (options.rank == victim) {
        lost = !loaded.ok();
        return;
      }
      EXPECT_FALSE(next.ok());
      const absl::Status& first = loaded.ok() ? next : loaded;
      EXPECT_TRUE(absl::IsUnavailable(first) || absl::IsDataLoss(first)) << first;
      EXPECT_THAT(errors::RanksOf(first), ::testing::ElementsAre(victim)) << first;
    });
    return lost;
  };
  for (Rank victim = 0; victim < kRanks; ++victim) {
    int64_t operations = 0;
    for (; operations < 200; ++operations) {
      SCOPED_TRACE(absl::StrCat("rank ", victim, " at operation ", operations));
      if (!job(victim, operations) || HasFailure()) break;
    }
    EXPECT_GT(operations, 20);
    EXPECT_LT(operations, 200);
  }
  ExpectAllOk(testing::RunRanks(kRanks, [&](const ShardedOptimizerOptions& options) {
    Trainer trainer(options);
    trainer.optimizer().load_checkpoint(root);
    trainer.StepTo(kLast);
    EXPECT_EQ(trainer.State(), TheSaved().expected);
    trainer.optimizer().Close();
  }));
}

// --- Attached.

// Where rank 1 is in its call when something is lost.
enum class Point {
  kBeforeTheBegin,   // of its first exchange
  kAfterTheBegin,    // it has met the others once
  kStaged,           // it has checked its share, and is about to say so
  kBeforeTheMark,    // all have checked theirs
  kMarked,           // its state counts as replaced in part
  kBeforeTheWrites,  // all have the parameters
  kWritten,          // it has replaced its slots, and is about to say so
  kBeforeTheSwap,    // all have: it is about to call FinishLoading
  kAfterTheSwap,     // of its own
};
constexpr Point kPoints[] = {Point::kBeforeTheBegin,  Point::kAfterTheBegin, Point::kStaged,
                             Point::kBeforeTheMark,   Point::kMarked,        Point::kWritten,
                             Point::kBeforeTheWrites, Point::kBeforeTheSwap, Point::kAfterTheSwap};

// Calls `reached` with what a load is at, each point of an attempt once, in order.
class WatchedOwner final : public ForwardingOwner {
 public:
  WatchedOwner(std::unique_ptr<OwnerLink> owner, std::function<void(Point)> reached)
      : ForwardingOwner(std::move(owner)), reached_(std::move(reached)) {}

  absl::Status ShareBytes(const ByteShare& share, absl::Duration timeout) override {
    if (share.call == ShareCall::kLoad) {
      if (share.position == 0) {
        states_ = 0;
        reached_(Point::kBeforeTheBegin);
      } else if (states_ == 1) {
        reached_(Point::kMarked);
      } else if (states_ == 2) {
        reached_(Point::kWritten);
      } else if (share.position == kCheckedAt) {
        reached_(Point::kStaged);
      }
    }
    absl::Status shared = ForwardingOwner::ShareBytes(share, timeout);
    if (share.call == ShareCall::kLoad && share.position == 0) reached_(Point::kAfterTheBegin);
    return shared;
  }
  absl::StatusOr<StateAccess*> state(absl::Duration timeout) override {
    if (++states_ == 1) reached_(Point::kBeforeTheMark);
    if (states_ == 2) reached_(Point::kBeforeTheWrites);
    return ForwardingOwner::state(timeout);
  }
  absl::Status FinishLoading(const LoadedStep& loaded, absl::Duration timeout) override {
    reached_(Point::kBeforeTheSwap);
    absl::Status finished = ForwardingOwner::FinishLoading(loaded, timeout);
    if (finished.ok()) reached_(Point::kAfterTheSwap);
    return finished;
  }

 private:
  // Of a named checkpoint: the names; opened, the manifests, it fits; then what was checked.
  static constexpr uint32_t kCheckedAt = 4;
  const std::function<void(Point)> reached_;
  int states_ = 0;  // of this attempt
};

// Rank 1 comes to the point and something is lost. Then all have the state of a job that was never
// disturbed, after as many further calls as were needed.
LossOutcome LoseAt(Point point, Victim victim) {
  LossPlan plan;
  plan.victim = victim;
  plan.watch = [point](std::unique_ptr<OwnerLink> owner, const std::function<void()>& lose) {
    return std::make_unique<WatchedOwner>(std::move(owner), [point, lose](Point at) {
      if (at == point) lose();
    });
  };
  plan.call = [](Trainer& trainer) { trainer.optimizer().load_checkpoint(TheSaved().root, kName); };
  plan.check = [](Trainer& trainer) {
    EXPECT_EQ(trainer.State(), TheSaved().expected);
    EXPECT_EQ(trainer.optimizer().blob(), "blob");
  };
  LossOutcome outcome = LoseInACall(plan);
  EXPECT_TRUE(outcome.lost);
  return outcome;
}

class LoadCheckpointLossOfAProcess : public ::testing::TestWithParam<Point> {};

TEST_P(LoadCheckpointLossOfAProcess, Server_TheLoadBeginsAgain) {
  const LossOutcome outcome = LoseAt(GetParam(), Victim::kServer);
  EXPECT_EQ(outcome.calls, 1) << outcome.failed;
}

TEST_P(LoadCheckpointLossOfAProcess, Trainer_ItsSuccessorLoadsWithTheOthers) {
  const LossOutcome outcome = LoseAt(GetParam(), Victim::kTrainer);
  // After the swap the other rank steps already: both are told at once.
  const bool has_loaded = GetParam() == Point::kAfterTheSwap;
  EXPECT_EQ(outcome.calls, has_loaded ? 2 : 1) << outcome.failed;
  if (has_loaded) {
    EXPECT_THAT(outcome.failed, HasSubstr("rank 0 steps, while rank 1 loads"));
  }
}

INSTANTIATE_TEST_SUITE_P(Points, LoadCheckpointLossOfAProcess, ::testing::ValuesIn(kPoints),
                         [](const auto& test) {
                           return absl::StrCat("Point", static_cast<int>(test.param));
                         });

// Its state ends with it: all are told, and new trainers load.
TEST(LoadCheckpointLoss, ServerWithoutAKeeper_AllAreToldAndNewTrainersGoOn) {
  for (const Point point : {Point::kStaged, Point::kMarked, Point::kBeforeTheSwap}) {
    SCOPED_TRACE(static_cast<int>(point));
    auto server = std::make_unique<NodeRig>(kRanks);
    server->OnEveryRank([&](Rank rank) {
      bool done = false;
      ClientSeams seams;
      seams.link = [&](std::unique_ptr<OwnerLink> owner) -> std::unique_ptr<OwnerLink> {
        if (rank != 1) return owner;
        return std::make_unique<WatchedOwner>(std::move(owner), [&](Point at) {
          if (at == point && !std::exchange(done, true)) server->Die();
        });
      };
      const ScopedClientSeams scoped(seams);
      Trainer trainer(testing::AttachedTo(*server, rank));
      trainer.StepTo(1);
      const absl::Status lost =
          ErrorOf([&] { trainer.optimizer().load_checkpoint(TheSaved().root, kName); });
      EXPECT_TRUE(absl::IsUnavailable(lost) || absl::IsDataLoss(lost)) << lost;
      // Within this process the server's ranks end one after the other, so that rank 0's may see
      // it.
      const auto ended = HasSubstr("the shard server has ended");
      if (rank == 1) {
        EXPECT_THAT(lost.ToString(), ended);
      } else {
        EXPECT_THAT(lost.ToString(), AnyOf(ended, HasSubstr("rank 1 is lost")));
      }
    });
    server = std::make_unique<NodeRig>(kRanks);
    server->OnEveryRank([&](Rank rank) {
      Trainer trainer(testing::AttachedTo(*server, rank));
      trainer.optimizer().load_checkpoint(TheSaved().root);
      trainer.StepTo(kLast);
      EXPECT_EQ(trainer.State(), TheSaved().expected);
      trainer.optimizer().Close();
    });
  }
}

}  // namespace
}  // namespace optshard
