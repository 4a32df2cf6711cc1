// A process that is lost in the middle of load_checkpoint(): all ranks end with the new state, or
// all are told, and the call made again goes on from the checkpoint.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
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
#include "tests/client/saved_run.h"
#include "tests/client/tensors.h"
#include "tests/client/written_checkpoint.h"
#include "tests/server/node/kept_server.h"
#include "tests/server/node/node_rig.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/fake_plane.h"
#include "tests/testing/forwarding_owner.h"
#include "tests/testing/hooked_state.h"

namespace optshard {
namespace {

using ::testing::AnyOf;
using testing::ErrorOf;
using testing::ExpectAllOk;
using testing::FakeHub;
using testing::ForwardingOwner;
using ::testing::HasSubstr;
using testing::HookedState;
using testing::LoseInACall;
using testing::LossOutcome;
using testing::LossPlan;
using testing::LossTrainer;
using testing::NodeRig;
using testing::SavedRun;
using testing::Victim;
using Trainer = testing::LossTrainer;

constexpr int kRanks = LossTrainer::kRanks;
constexpr int kSaved = 2;  // the checkpoint's step
constexpr int kLast = LossPlan::kLast;
constexpr char kName[] = "step-000000000002";

const SavedRun& TheSaved() {
  static const SavedRun* const saved =
      new SavedRun(testing::SaveRun<Trainer>(kRanks, kSaved, kLast));
  return *saved;
}

std::vector<std::string> ParametersOf(const Trainer& trainer) {
  std::vector<std::string> bytes;
  for (const at::Tensor& each : trainer.parameters()) bytes.push_back(testing::BytesOf(each));
  return bytes;
}

// --- Embedded: the plane loses the rank at each of its operations in the call.

TEST(LoadCheckpointLoss, EmbeddedRankAtAnyExchange_IsNamedAndNewOnesGoOn) {
  const std::string& root = TheSaved().root;
  int torn = 0;  // of the operations
  const auto job = [&](Rank victim, int64_t operation) {
    FakeHub::Options hub_options;
    hub_options.world_size = kRanks;
    FakeHub hub(hub_options);
    bool lost = true;
    bool may_be_torn = false;
    testing::RunRanks(hub, kRanks, [&](const ShardedOptimizerOptions& options) {
      Trainer trainer(options);
      trainer.StepTo(1);
      const std::vector<std::string> at_first_step = ParametersOf(trainer);
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
      if (absl::IsDataLoss(loaded)) {
        may_be_torn = true;
      } else if (!loaded.ok()) {
        EXPECT_EQ(ParametersOf(trainer), at_first_step);
      }
      EXPECT_TRUE(absl::IsUnavailable(first) || absl::IsDataLoss(first)) << first;
      EXPECT_THAT(errors::RanksOf(first), ::testing::ElementsAre(victim)) << first;
    });
    torn += may_be_torn ? 1 : 0;
    return lost;
  };
  for (Rank victim = 0; victim < kRanks; ++victim) {
    torn = 0;
    int64_t operations = 0;
    for (; operations < 200; ++operations) {
      SCOPED_TRACE(absl::StrCat("rank ", victim, " at operation ", operations));
      if (!job(victim, operations) || HasFailure()) break;
    }
    EXPECT_GT(operations, 20);
    EXPECT_LT(operations, 200);
    // The marks, the parameters of some buckets, and that all have taken theirs.
    EXPECT_LT(torn, 8);
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
  kBeforeTheBegin,  // of its first exchange
  kAfterTheBegin,   // it has met the others once
  kBeforeTheStaging,
  kInTheStaging,   // it has staged something
  kStaged,         // it has staged all, and is about to say so
  kBeforeTheSwap,  // all have: it is about to call FinishLoading
  kAfterTheSwap,   // of its own
  kUnanswered,     // likewise, and it has not been told
};
constexpr Point kPoints[] = {
    Point::kBeforeTheBegin, Point::kAfterTheBegin, Point::kBeforeTheStaging, Point::kInTheStaging,
    Point::kStaged,         Point::kBeforeTheSwap, Point::kAfterTheSwap,     Point::kUnanswered};

// Calls `reached` with what a load is at, each point of an attempt once, in order. True of
// kUnanswered: it is as if the owner had gone away without an answer.
class WatchedOwner final : public ForwardingOwner {
 public:
  WatchedOwner(std::unique_ptr<OwnerLink> owner, std::function<bool(Point)> reached)
      : ForwardingOwner(std::move(owner)), reached_(std::move(reached)) {}

  absl::Status ShareBytes(const ByteShare& share, absl::Duration timeout) override {
    if (share.call == ShareCall::kLoad) {
      if (share.position == 0) {
        staged_ = 0;
        reached_(Point::kBeforeTheBegin);
      } else if (staged_ > 0) {
        reached_(Point::kStaged);
      }
    }
    absl::Status shared = ForwardingOwner::ShareBytes(share, timeout);
    if (share.call == ShareCall::kLoad && share.position == 0) reached_(Point::kAfterTheBegin);
    return shared;
  }
  absl::StatusOr<StateAccess*> state(absl::Duration timeout) override {
    absl::StatusOr<StateAccess*> state = ForwardingOwner::state(timeout);
    if (!state.ok()) return state;
    state_ = std::make_unique<HookedState>(*state, [this](HookedState::Call call) {
      if (call == HookedState::Call::kBegin) reached_(Point::kBeforeTheStaging);
      if (call == HookedState::Call::kStage && ++staged_ == 2) reached_(Point::kInTheStaging);
      return absl::OkStatus();
    });
    return state_.get();
  }
  absl::Status FinishLoading(const LoadedStep& loaded, absl::Span<const ReplicaTensor> replica,
                             absl::Span<const ReplicaRegion> regions,
                             absl::Duration timeout) override {
    reached_(Point::kBeforeTheSwap);
    absl::Status finished = ForwardingOwner::FinishLoading(loaded, replica, regions, timeout);
    if (!finished.ok()) return finished;
    reached_(Point::kAfterTheSwap);
    return reached_(Point::kUnanswered) ? errors::OwnerAway({1}, "no answer") : finished;
  }

 private:
  const std::function<bool(Point)> reached_;
  std::unique_ptr<HookedState> state_;
  int staged_ = 0;  // calls, of this attempt
};

// Rank 1 comes to the point and something is lost. Then all have the state of a job that was never
// disturbed, after as many further calls as were needed.
LossOutcome LoseAt(Point point, Victim victim) {
  LossPlan plan;
  plan.victim = victim;
  plan.watch = [point](std::unique_ptr<OwnerLink> owner, const std::function<void()>& lose) {
    return std::make_unique<WatchedOwner>(std::move(owner),
                                          [point, lose, came = false](Point at) mutable {
                                            if (at != point) return false;
                                            lose();
                                            return !std::exchange(came, true);
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
  const bool has_loaded = GetParam() >= Point::kAfterTheSwap;
  EXPECT_EQ(outcome.calls, has_loaded ? 2 : 1) << outcome.failed;
  if (has_loaded) {
    EXPECT_THAT(outcome.failed, HasSubstr("rank 0 steps, while rank 1 loads"));
  }
}

INSTANTIATE_TEST_SUITE_P(Points, LoadCheckpointLossOfAProcess, ::testing::ValuesIn(kPoints),
                         [](const auto& test) {
                           return absl::StrCat("Point", static_cast<int>(test.param));
                         });

// The same, and nobody loads: what all ranks have is what they had, bit for bit.
class LoadCheckpointThatIsGivenUp : public ::testing::TestWithParam<std::tuple<Point, Victim>> {};

TEST_P(LoadCheckpointThatIsGivenUp, BeforeTheSwap_NothingHasChangedAndTrainingGoesOn) {
  const auto [point, victim] = GetParam();
  LossPlan plan;
  plan.victim = victim;
  plan.watch = [at = point](std::unique_ptr<OwnerLink> owner, const std::function<void()>& lose) {
    return std::make_unique<WatchedOwner>(std::move(owner), [at, lose](Point reached) {
      if (reached == at) lose();
      return false;
    });
  };
  plan.call = [](Trainer& trainer) { trainer.optimizer().load_checkpoint(TheSaved().root, kName); };
  plan.unchanged = [](Trainer& trainer) {
    EXPECT_EQ(trainer.optimizer().finished_step(), 1u);
    EXPECT_EQ(trainer.State(), TheSaved().at_first_step);
  };
  plan.check = [](Trainer& trainer) { EXPECT_EQ(trainer.State(), TheSaved().expected); };
  const LossOutcome outcome = LoseInACall(plan);
  EXPECT_TRUE(outcome.lost);
  const bool may_not_be_missed = victim == Victim::kServer && point < Point::kInTheStaging;
  EXPECT_TRUE(may_not_be_missed || !outcome.failed.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Points, LoadCheckpointThatIsGivenUp,
    ::testing::Combine(::testing::Values(Point::kBeforeTheBegin, Point::kAfterTheBegin,
                                         Point::kBeforeTheStaging, Point::kInTheStaging,
                                         Point::kStaged, Point::kBeforeTheSwap),
                       ::testing::Values(Victim::kServer, Victim::kTrainer)),
    [](const auto& test) {
      return absl::StrCat("Point", static_cast<int>(std::get<0>(test.param)),
                          std::get<1>(test.param) == Victim::kServer ? "Server" : "Trainer");
    });

// Its state ends with it: all are told, and new trainers load.
TEST(LoadCheckpointLoss, ServerWithoutAKeeper_AllAreToldAndNewTrainersGoOn) {
  for (const Point point : {Point::kInTheStaging, Point::kStaged, Point::kBeforeTheSwap}) {
    SCOPED_TRACE(static_cast<int>(point));
    auto server = std::make_unique<NodeRig>(kRanks);
    server->OnEveryRank([&](Rank rank) {
      bool done = false;
      ClientSeams seams;
      seams.link = [&](std::unique_ptr<OwnerLink> owner) -> std::unique_ptr<OwnerLink> {
        if (rank != 1) return owner;
        return std::make_unique<WatchedOwner>(std::move(owner), [&](Point at) {
          if (at == point && !std::exchange(done, true)) server->Die();
          return false;
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
