// A rank that dies or stops at any operation of a step, with a coordinator to say who it was; and
// one that leaves before the others.

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/gradient_mode.h"
#include "common/step_info.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_owner.h"
#include "tests/server/shard/owner_rig.h"
#include "tests/testing/forwarding_coordinator.h"

namespace optshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

OwnerRig::Options SmallOptions(int world_size, GradientMode mode) {
  GroupSpec group;
  for (int p = 0; p < 3; ++p) {
    ParameterSpec spec;
    spec.name = absl::StrCat("p", p);
    spec.shape = {200 + 16 * p};
    group.parameters.push_back(spec);
  }
  OwnerRig::Options options = OwnerRig::MixedOptions(world_size);
  options.owner.spec.space = ParameterSpace({group});
  options.owner.spec.rules.resize(1);
  options.owner.spec.buckets = {512, 128};
  options.owner.spec.gradient_mode = mode;
  return options;
}

// That what a survivor says of step 2, in which `lost` was lost, is one of the things it may say,
// and that it goes on saying it.
void ExpectSurvivorKnows(OwnerRig& rig, Rank survivor, Rank lost,
                         const absl::StatusOr<StepInfo>& result) {
  if (result.ok()) return;  // it had finished when the other died
  const absl::Status& status = result.status();
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("rank ", lost))) << status;
  EXPECT_THAT(errors::RanksOf(status), ElementsAre(lost)) << status;
  EXPECT_EQ(rig.owner(survivor).failure(), status);
  EXPECT_EQ(rig.owner(survivor).Step(rig.InputOf(survivor)).status(), status);

  const ShardView& view = rig.owner(survivor).view();
  const StepProgress progress = view.Describe().progress;
  EXPECT_EQ(progress.finished, 1);
  absl::StatusOr<SlotRead> read = absl::UnknownError("owns nothing");
  for (const OwnedSlice& slice : view.Slices(0, 1)) {
    std::vector<double> values(slice.elements);
    read = view.ReadSlot(slice.parameter, slice.slots[0], 0, absl::MakeSpan(values));
  }
  if (errors::IsPeerLost(status)) {
    EXPECT_EQ(progress.outcome, StepOutcome::kNotApplied);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->step, 1);
  } else {
    EXPECT_EQ(progress.outcome,
              errors::IsTornStep(status) ? StepOutcome::kTorn : StepOutcome::kInDoubt)
        << status;
    EXPECT_TRUE(errors::IsTornStep(status) || errors::IsStepInDoubt(status)) << status;
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << read.status();
  }
}

int64_t OperationsUpToStepOne(const OwnerRig::Options& options) {
  OwnerRig rig(options);
  for (const absl::Status& status : rig.Start()) EXPECT_TRUE(status.ok()) << status;
  rig.GiveGradients(1);
  for (const auto& result : rig.Step()) EXPECT_TRUE(result.ok()) << result.status();
  return rig.hub().OperationsStarted(0);
}

int64_t OperationsUpToSync(const OwnerRig::Options& options) {
  OwnerRig rig(options);
  for (const absl::Status& status : rig.Start()) EXPECT_TRUE(status.ok()) << status;
  return rig.hub().OperationsStarted(0);
}

class ShardOwnerKillTest : public ::testing::TestWithParam<GradientMode> {};

TEST_P(ShardOwnerKillTest, RankKilledAtAnyOperation_EverySurvivorNamesIt) {
  constexpr int kRanks = 3;
  const OwnerRig::Options options = SmallOptions(kRanks, GetParam());
  const int64_t synced = OperationsUpToSync(options);
  const int64_t first_step = OperationsUpToStepOne(options);
  for (int64_t at = first_step; at < 2 * first_step - synced; ++at) {
    const Rank lost = static_cast<Rank>(at % kRanks);
    SCOPED_TRACE(absl::StrCat("rank ", lost, " dies at operation ", at - first_step));
    OwnerRig rig(options);
    // A dead rank does not wait for the failure's attribution.
    rig.owner_options(lost).attribution_timeout = absl::ZeroDuration();
    for (const absl::Status& status : rig.Start()) ASSERT_TRUE(status.ok()) << status;
    rig.GiveGradients(1);
    for (const auto& result : rig.Step()) ASSERT_TRUE(result.ok()) << result.status();
    rig.GiveGradients(2);
    rig.KillAt(lost, at);
    const std::vector<absl::StatusOr<StepInfo>> results = rig.Step();
    bool applied = false;
    bool not_applied = false;
    for (Rank r = 0; r < kRanks; ++r) {
      if (r == lost) continue;
      ExpectSurvivorKnows(rig, r, lost, results[r]);
      applied = applied || results[r].ok() || errors::IsTornStep(results[r].status());
      not_applied = not_applied || errors::IsPeerLost(results[r].status());
    }
    EXPECT_FALSE(applied && not_applied);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ShardOwnerKillTest,
                         ::testing::Values(GradientMode::kAveraged, GradientMode::kReduce),
                         [](const ::testing::TestParamInfo<GradientMode>& info) {
                           return info.param == GradientMode::kReduce ? "Reduce" : "Averaged";
                         });

TEST(ShardOwner_RankKilledBetweenSteps_NextStepIsNotApplied, AndTheStateIsReadable) {
  for (const GradientMode mode : {GradientMode::kAveraged, GradientMode::kReduce}) {
    OwnerRig rig(SmallOptions(3, mode));
    for (const absl::Status& status : rig.Start()) ASSERT_TRUE(status.ok()) << status;
    rig.GiveGradients(1);
    for (const auto& result : rig.Step()) ASSERT_TRUE(result.ok()) << result.status();
    rig.Kill(1);
    // The coordinator tells the others while they compute.
    for (const Rank r : {0, 2}) ASSERT_TRUE(rig.AwaitAborted(r));
    for (const Rank r : {0, 2}) {
      const absl::StatusOr<StepInfo> result = rig.owner(r).Step(rig.InputOf(r));
      EXPECT_TRUE(errors::IsPeerLost(result.status())) << result.status();
      ExpectSurvivorKnows(rig, r, 1, result);
    }
  }
}

TEST(ShardOwner_RankStoppedInAStep_OthersNameItAfterItsLease, AndDoNotHang) {
  OwnerRig::Options options = SmallOptions(3, GradientMode::kReduce);
  const int64_t first_step = OperationsUpToStepOne(options);
  options.lease = absl::Milliseconds(150);
  for (const int64_t at : {first_step, first_step + 4, first_step + 8}) {
    SCOPED_TRACE(absl::StrCat("rank 2 stops at operation ", at - first_step));
    OwnerRig rig(options);
    rig.owner_options(2).attribution_timeout = absl::ZeroDuration();
    for (const absl::Status& status : rig.Start()) ASSERT_TRUE(status.ok()) << status;
    rig.GiveGradients(1);
    for (const auto& result : rig.Step()) ASSERT_TRUE(result.ok()) << result.status();
    rig.GiveGradients(2);
    rig.hub().HangAt(2, at);
    absl::Mutex mutex;
    int running = 2;
    std::vector<absl::StatusOr<StepInfo>> results(3);
    std::thread stall([&] {
      ASSERT_TRUE(rig.hub().AwaitHung(2, Clock::Monotonic().Now() + absl::Seconds(20)));
      rig.coordinator().Stall(2);
    });
    rig.OnEveryRank([&](Rank r) {
      results[r] = rig.owner(r).Step(rig.InputOf(r));
      absl::MutexLock lock(&mutex);
      if (r != 2 && --running == 0) rig.hub().ReleaseHung();
    });
    stall.join();
    for (const Rank r : {0, 1}) {
      EXPECT_FALSE(results[r].ok());
      ExpectSurvivorKnows(rig, r, 2, results[r]);
    }
  }
}

// Says how much time there was for leaving.
class LeaveWatch final : public ForwardingSession {
 public:
  LeaveWatch(std::unique_ptr<MemberSession> session, absl::Duration* left_with)
      : ForwardingSession(std::move(session)), left_with_(*left_with) {}

  absl::Status Leave(absl::Time deadline) override {
    left_with_ = deadline - Clock::Monotonic().Now();
    return ForwardingSession::Leave(deadline);
  }

 private:
  absl::Duration& left_with_;
};

TEST(ShardOwner_StopThatWaitsForOthersInVain, HasTimeToLeaveTheJob) {
  OwnerRig rig(SmallOptions(2, GradientMode::kReduce));
  absl::Duration left_with;
  ForwardingCoordinator coordinator(
      rig.owner_options(0).coordinator, [&](std::unique_ptr<MemberSession> session) {
        return std::make_unique<LeaveWatch>(std::move(session), &left_with);
      });
  rig.owner_options(0).coordinator = &coordinator;
  for (const absl::Status& status : rig.Start()) ASSERT_TRUE(status.ok()) << status;
  const absl::Status stopped = rig.owner(0).Stop(absl::Milliseconds(400));
  EXPECT_TRUE(errors::IsPeersTimedOut(stopped)) << stopped;
  EXPECT_GT(left_with, absl::Milliseconds(200));
}

}  // namespace
}  // namespace optshard::testing
