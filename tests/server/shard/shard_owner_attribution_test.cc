// What can be read of a shard owner while the coordinator attributes a failure.

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/errors.h"
#include "common/gradient_mode.h"
#include "common/membership/coordinator_client.h"
#include "common/step_info.h"
#include "gtest/gtest.h"
#include "server/shard/shard_owner.h"
#include "tests/server/shard/owner_rig.h"
#include "tests/testing/forwarding_coordinator.h"

namespace optshard::testing {
namespace {

// Attributes every failure to what the member has observed, and calls `asked` before it does.
class SlowSession final : public ForwardingSession {
 public:
  SlowSession(std::unique_ptr<MemberSession> session, std::function<void()> asked)
      : ForwardingSession(std::move(session)), asked_(std::move(asked)) {}

  absl::Status ReportFailure(const StepProgress&, Rank, const absl::Status& observed,
                             absl::Time) override {
    asked_();
    return observed;
  }

 private:
  const std::function<void()> asked_;
};

TEST(ShardOwner_StepIsTorn_ItsStateIsNotGivenOut, BeforeTheFailureIsAttributedEither) {
  OwnerRig::Options options = OwnerRig::MixedOptions(2);
  options.owner.spec.gradient_mode = GradientMode::kAveraged;
  OwnerRig rig(options);
  int asked = 0;
  const auto check = [&] {
    ++asked;
    const ShardView& view = rig.owner(0).view();
    EXPECT_EQ(view.Describe().progress.outcome, StepOutcome::kTorn);
    const OwnedSlice slice = view.Slices(0, 1)[0];
    std::vector<double> values(slice.elements);
    const absl::Status read =
        view.ReadSlot(slice.parameter, slice.slots[0], 0, absl::MakeSpan(values)).status();
    EXPECT_TRUE(absl::IsDataLoss(read)) << read;
  };
  ForwardingCoordinator slow(&rig.coordinator(), [&](std::unique_ptr<MemberSession> session) {
    return std::make_unique<SlowSession>(std::move(session), check);
  });
  rig.owner_options(0).coordinator = &slow;
  rig.owner_options(1).attribution_timeout = absl::ZeroDuration();
  for (const absl::Status& status : rig.Start()) ASSERT_TRUE(status.ok()) << status;
  rig.GiveGradients(1);
  // The votes come first: rank 0 has both and begins to apply the step.
  rig.hub().KillInWaitFor(1, rig.hub().OperationsStarted(1));
  const std::vector<absl::StatusOr<StepInfo>> results = rig.Step();
  EXPECT_TRUE(errors::IsTornStep(results[0].status())) << results[0].status();
  EXPECT_TRUE(errors::IsStepInDoubt(results[1].status())) << results[1].status();
  EXPECT_EQ(asked, 1);
}

// The gather that ends a step in one pass.
TEST(ShardOwner_RankLostInTheGatherThatEndsAStep, DoubtsWhetherTheOthersHaveAppliedIt) {
  OwnerRig::Options options = OwnerRig::MixedOptions(2);
  options.reachable = true;
  OwnerRig rig(options);
  rig.owner_options(1).attribution_timeout = absl::ZeroDuration();
  for (const absl::Status& status : rig.Start()) ASSERT_TRUE(status.ok()) << status;
  rig.GiveGradients(1);
  rig.hub().KillInWaitFor(1, rig.hub().OperationsStarted(1) + 1);
  const std::vector<absl::StatusOr<StepInfo>> results = rig.Step();
  EXPECT_TRUE(results[0].ok()) << results[0].status();
  EXPECT_TRUE(errors::IsStepInDoubt(results[1].status())) << results[1].status();
  EXPECT_EQ(rig.owner(1).view().Describe().progress.outcome, StepOutcome::kApplied);
  EXPECT_EQ(rig.owner(1).progress().finished, 0);
}

}  // namespace
}  // namespace optshard::testing
