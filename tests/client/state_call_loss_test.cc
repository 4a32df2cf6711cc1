// A process that is lost in the middle of consolidate_state_dict() or load_state_dict(): the call
// begins again, or all ranks are told and make it once more.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sharded_optimizer.h"
#include "client/state_dict.h"
#include "tests/client/lost_process.h"
#include "tests/testing/client_ranks.h"
#include "tests/testing/forwarding_owner.h"

namespace optshard {
namespace {

using testing::ExpectAllOk;
using testing::ForwardingOwner;
using testing::LoseInACall;
using testing::LossOutcome;
using testing::LossPlan;
using testing::LossTrainer;
using testing::Victim;

// How many requests the call of this thread has made to its owner; -1: it makes none.
thread_local int requests = -1;

class InCall {
 public:
  InCall() { requests = 0; }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;
  ~InCall() { requests = -1; }
};

// Calls `lose` before this request of a call.
class CountingOwner final : public ForwardingOwner {
 public:
  CountingOwner(std::unique_ptr<OwnerLink> owner, int at, std::function<void()> lose)
      : ForwardingOwner(std::move(owner)), at_(at), lose_(std::move(lose)) {}

  absl::Status ShareBytes(const ByteShare& share, absl::Duration timeout) override {
    Count();
    return ForwardingOwner::ShareBytes(share, timeout);
  }
  absl::StatusOr<StateAccess*> state(absl::Duration timeout) override {
    Count();
    return ForwardingOwner::state(timeout);
  }
  absl::Status ReplaceState(absl::Duration timeout) override {
    Count();
    return ForwardingOwner::ReplaceState(timeout);
  }

 private:
  void Count() const {
    if (requests >= 0 && requests++ == at_) lose_();
  }

  const int at_;
  const std::function<void()> lose_;
};

// What a job has that was never disturbed.
struct Expected {
  StateDict saved;                             // after step 2
  std::vector<std::string> at_first_step;      // its consolidated state
  std::vector<std::string> all_at_first_step;  // likewise, and parameters
  std::vector<std::string> at_last;
  std::vector<std::string> at_last_from_saved;  // loaded after step 1
};
const Expected& TheExpected() {
  static const Expected* const expected = [] {
    auto* const made = new Expected;
    const auto with_job = [](const std::function<void(LossTrainer&, Rank)>& work) {
      ExpectAllOk(
          testing::RunRanks(LossTrainer::kRanks, [&](const ShardedOptimizerOptions& options) {
            LossTrainer trainer(options);
            trainer.StepTo(1);
            work(trainer, options.rank);
            trainer.optimizer().Close();
          }));
    };
    with_job([&](LossTrainer& trainer, Rank rank) {
      trainer.optimizer().consolidate_state_dict(-1);
      if (rank == 0) made->at_first_step = DigestLines(trainer.optimizer().state_dict());
      const std::vector<std::string> all = trainer.State();
      if (rank == 0) made->all_at_first_step = all;
      trainer.StepTo(2);
      trainer.optimizer().consolidate_state_dict(-1);
      if (rank == 0) made->saved = trainer.optimizer().state_dict();
      trainer.StepTo(LossPlan::kLast);
      const std::vector<std::string> state = trainer.State();
      if (rank == 0) made->at_last = state;
    });
    with_job([&](LossTrainer& trainer, Rank rank) {
      trainer.optimizer().load_state_dict(made->saved);
      trainer.StepTo(LossPlan::kLast);
      const std::vector<std::string> state = trainer.State();
      if (rank == 0) made->at_last_from_saved = state;
    });
    return made;
  }();
  return *expected;
}

void Consolidate(LossTrainer& trainer) {
  {
    const InCall in_call;
    trainer.optimizer().consolidate_state_dict(-1);
  }
  EXPECT_EQ(DigestLines(trainer.optimizer().state_dict()), TheExpected().at_first_step);
}

void LoadEverywhere(LossTrainer& trainer) {
  const InCall in_call;
  trainer.optimizer().load_state_dict(TheExpected().saved);
}

void LoadFromOne(LossTrainer& trainer) {
  const InCall in_call;
  trainer.optimizer().load_state_dict(TheExpected().saved, 0);
}

struct Case {
  std::string name;
  Victim victim;
  std::function<void(LossTrainer&)> call;
  std::vector<std::string> Expected::*state;  // at the end
  int stride = 1;                             // of the requests, many of which are alike
};

class StateCallLoss : public ::testing::TestWithParam<Case> {};

TEST_P(StateCallLoss, BeforeARequest_TheCallBeginsAgain) {
  const Case& each = GetParam();
  int at = 0;
  for (bool lost = true; lost && !HasFailure(); at += each.stride) {
    SCOPED_TRACE(absl::StrCat("request ", at));
    LossPlan plan;
    plan.victim = each.victim;
    plan.watch = [at](std::unique_ptr<OwnerLink> owner, const std::function<void()>& lose) {
      return std::make_unique<CountingOwner>(std::move(owner), at, lose);
    };
    plan.call = each.call;
    plan.check = [&](LossTrainer& trainer) {
      EXPECT_EQ(trainer.State(), TheExpected().*each.state);
    };
    const LossOutcome outcome = LoseInACall(plan);
    lost = outcome.lost;
    EXPECT_EQ(outcome.calls, 1) << outcome.failed;
  }
  EXPECT_GT(at, 4);
}

// The same, and nobody loads: what all ranks have is what they had, bit for bit.
class LoadThatIsGivenUp : public ::testing::TestWithParam<Case> {};

TEST_P(LoadThatIsGivenUp, BeforeARequest_NothingHasChangedAndTrainingGoesOn) {
  const Case& each = GetParam();
  int at = 0;
  for (bool lost = true; lost && !HasFailure(); at += each.stride) {
    SCOPED_TRACE(absl::StrCat("request ", at));
    LossPlan plan;
    plan.victim = each.victim;
    plan.watch = [at](std::unique_ptr<OwnerLink> owner, const std::function<void()>& lose) {
      return std::make_unique<CountingOwner>(std::move(owner), at, lose);
    };
    // Without a loss it loads, and there is nothing to see.
    std::atomic<bool> called{false};
    plan.call = [&](LossTrainer& trainer) {
      each.call(trainer);
      called = true;
    };
    plan.unchanged = [](LossTrainer& trainer) {
      EXPECT_EQ(trainer.optimizer().finished_step(), 1u);
      EXPECT_EQ(trainer.State(), TheExpected().all_at_first_step);
    };
    plan.check = [&](LossTrainer& trainer) {
      if (called) return;
      EXPECT_EQ(trainer.State(), TheExpected().*each.state);
    };
    lost = LoseInACall(plan).lost;
  }
  EXPECT_GT(at, 4);
}

INSTANTIATE_TEST_SUITE_P(
    Calls, LoadThatIsGivenUp,
    ::testing::Values(Case{"EverywhereServer", Victim::kServer, LoadEverywhere, &Expected::at_last},
                      Case{"EverywhereTrainer", Victim::kTrainer, LoadEverywhere,
                           &Expected::at_last},
                      Case{"FromOneServer", Victim::kServer, LoadFromOne, &Expected::at_last},
                      Case{"FromOneTrainer", Victim::kTrainer, LoadFromOne, &Expected::at_last}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Calls, StateCallLoss,
    ::testing::Values(
        Case{"ConsolidateServer", Victim::kServer, Consolidate, &Expected::at_last, 4},
        Case{"ConsolidateTrainer", Victim::kTrainer, Consolidate, &Expected::at_last, 4},
        Case{"LoadEverywhereServer", Victim::kServer, LoadEverywhere,
             &Expected::at_last_from_saved},
        Case{"LoadEverywhereTrainer", Victim::kTrainer, LoadEverywhere,
             &Expected::at_last_from_saved},
        Case{"LoadFromOneServer", Victim::kServer, LoadFromOne, &Expected::at_last_from_saved},
        Case{"LoadFromOneTrainer", Victim::kTrainer, LoadFromOne, &Expected::at_last_from_saved}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace optshard
