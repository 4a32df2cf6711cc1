// Shard owners with a coordinator: step, look in, stop; shard_owner_start_test.cc has their start.

#include "server/shard/shard_owner.h"

#include <atomic>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/gradient_mode.h"
#include "common/step_info.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard/engine/step_oracle.h"
#include "tests/server/shard/owner_rig.h"

namespace optshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

void ExpectOk(const std::vector<absl::Status>& results) {
  for (size_t r = 0; r < results.size(); ++r) {
    EXPECT_TRUE(results[r].ok()) << r << ": " << results[r];
  }
}

void ExpectOk(const std::vector<absl::StatusOr<StepInfo>>& results) {
  for (size_t r = 0; r < results.size(); ++r) {
    EXPECT_TRUE(results[r].ok()) << r << ": " << results[r].status();
  }
}

// Follows the rig's steps in one process.
class Follower {
 public:
  explicit Follower(OwnerRig& rig)
      : rig_(rig),
        groups_(ValidateGroups(rig.owner_options(0).spec).value()),
        oracle_(rig.space(), groups_) {
    for (int p = 0; p < rig.space().parameter_count(); ++p) {
      oracle_.SetParameter(p, rig.replica(0).Parameter(p));
    }
  }

  void Step() {
    std::vector<std::vector<Values>> gradients;
    std::vector<std::vector<bool>> has;
    const int world_size = rig_.owner_options(0).spec.world_size;
    for (Rank r = 0; r < world_size; ++r) {
      gradients.emplace_back();
      has.emplace_back(rig_.space().parameter_count(), true);
      for (int p = 0; p < rig_.space().parameter_count(); ++p) {
        gradients[r].push_back(rig_.replica(r).Gradient(p));
      }
    }
    oracle_.Step(gradients, has, rig_.owner_options(0).spec.gradient_mode,
                 rig_.owner(0).plan().tree, HyperparametersOf(groups_));
  }

  const StepOracle& oracle() const { return oracle_; }

 private:
  OwnerRig& rig_;
  const std::vector<GroupUpdate> groups_;
  StepOracle oracle_;
};

TEST(ShardOwner_ThreeRanks_StepLikeOneProcess, AndCanBeLookedInto) {
  OwnerRig rig(OwnerRig::MixedOptions(3));
  ExpectOk(rig.Start());
  Follower follower(rig);
  for (int step = 1; step <= 3; ++step) {
    rig.GiveGradients(step);
    const std::vector<absl::StatusOr<StepInfo>> results = rig.Step();
    ExpectOk(results);
    EXPECT_EQ(results[0]->step, step);
    follower.Step();
  }
  int64_t owned_elements = 0;
  for (Rank r = 0; r < 3; ++r) {
    for (int p = 0; p < rig.space().parameter_count(); ++p) {
      EXPECT_EQ(BitDifference(follower.oracle().Parameter(p), rig.replica(r).Parameter(p)), "")
          << "rank " << r << ", parameter " << p;
    }
    const ShardView& view = rig.owner(r).view();
    const ShardDescription description = view.Describe();
    EXPECT_EQ(description.member.rank, r);
    EXPECT_EQ(description.world_size, 3);
    EXPECT_EQ(RulesText(description.groups), "adam");
    EXPECT_EQ(description.gradient_mode, GradientMode::kReduce);
    EXPECT_EQ(description.policy, PartitionPolicy::kGreedy);
    EXPECT_EQ(description.progress.finished, 3);
    EXPECT_EQ(description.progress.outcome, StepOutcome::kIdle);
    EXPECT_TRUE(description.failure.ok());
    EXPECT_EQ(description.state_bytes, description.owned_elements * 8);
    EXPECT_EQ(description.groups[0].hyperparameters.Number("lr"), 0.001);
    const std::vector<OwnedSlice> slices = view.Slices(0, 1000);
    EXPECT_EQ(slices.size(), description.owned_parameters);
    for (const OwnedSlice& slice : slices) {
      owned_elements += slice.elements;
      EXPECT_EQ(slice.step, 3);
      EXPECT_THAT(slice.slots, ElementsAre("exp_avg", "exp_avg_sq", "step"));
      for (int s = 0; s < 2; ++s) {
        std::vector<double> values(slice.elements);
        const absl::StatusOr<SlotRead> read =
            view.ReadSlot(slice.parameter, slice.slots[s], 0, absl::MakeSpan(values));
        ASSERT_TRUE(read.ok()) << read.status();
        EXPECT_EQ(read->step, 3);
        EXPECT_EQ(read->format, StateFormat::kFloat32);
        EXPECT_EQ(BitDifference(follower.oracle().Slot(slice.parameter, s), values), "");
      }
      double count = 0;
      const absl::Status read =
          view.ReadSlot(slice.parameter, "step", 0, absl::MakeSpan(&count, 1)).status();
      ASSERT_TRUE(read.ok()) << read;
      EXPECT_EQ(count, 3);
    }
    EXPECT_FALSE(view.Timeline().empty());
  }
  EXPECT_EQ(owned_elements, rig.space().total_elements());
  ExpectOk(rig.Stop());
}

TEST(ShardOwner_TrainerGoneOnOneRank, AllGiveTheStepUpAndMayTryAgain) {
  OwnerRig rig(OwnerRig::MixedOptions(3));
  ExpectOk(rig.Start());
  Follower follower(rig);
  for (int step = 1; step <= 3; ++step) {
    rig.GiveGradients(step);
    for (int attempt = 0; attempt < 2; ++attempt) {
      rig.OnEveryRank([&](Rank r) {
        if (r == 1) {
          const absl::Status refused = rig.owner(r).RefuseNextStep("process 7 has ended");
          EXPECT_TRUE(refused.ok()) << refused;
          return;
        }
        const absl::Status gone = rig.owner(r).Step(rig.InputOf(r)).status();
        EXPECT_TRUE(errors::IsTrainerGone(gone)) << gone;
        EXPECT_THAT(errors::RanksOf(gone), ElementsAre(1));
        EXPECT_THAT(Text(gone), HasSubstr("process 7 has ended"));
        EXPECT_TRUE(rig.owner(r).failure().ok());
      });
    }
    const std::vector<absl::StatusOr<StepInfo>> results = rig.Step();
    ExpectOk(results);
    EXPECT_EQ(results[0]->step, step);
    follower.Step();
    for (int p = 0; p < rig.space().parameter_count(); ++p) {
      EXPECT_EQ(BitDifference(follower.oracle().Parameter(p), rig.replica(2).Parameter(p)), "");
    }
  }
  ExpectOk(rig.Stop());
}

TEST(ShardOwner_OneRank, NeedsNoDataPlane) {
  for (const GradientMode mode : {GradientMode::kAveraged, GradientMode::kReduce}) {
    OwnerRig::Options options = OwnerRig::MixedOptions(1);
    options.owner.spec.gradient_mode = mode;
    OwnerRig rig(options);
    rig.owner_options(0).plane_factory = nullptr;
    ExpectOk(rig.Start());
    Follower follower(rig);
    rig.GiveGradients(1);
    ExpectOk(rig.Step());
    follower.Step();
    for (int p = 0; p < rig.space().parameter_count(); ++p) {
      EXPECT_EQ(BitDifference(follower.oracle().Parameter(p), rig.replica(0).Parameter(p)), "");
    }
    ExpectOk(rig.Stop());
  }
}

TEST(ShardOwner_GroupsOfTwoRules_StepLikeOneProcess, AndShowEachGroupsSlots) {
  OwnerRig::Options options = OwnerRig::MixedOptions(2);
  options.owner.spec.rules = {{"sgd"}, {"nadam"}};
  options.owner.spec.rules[0].hyperparameters.Set("momentum", 0.5);
  OwnerRig rig(options);
  ExpectOk(rig.Start());
  Follower follower(rig);
  for (int step = 1; step <= 2; ++step) {
    rig.GiveGradients(step);
    ExpectOk(rig.Step());
    follower.Step();
  }
  for (Rank r = 0; r < 2; ++r) {
    for (int p = 0; p < rig.space().parameter_count(); ++p) {
      EXPECT_EQ(BitDifference(follower.oracle().Parameter(p), rig.replica(r).Parameter(p)), "")
          << "rank " << r << ", parameter " << p;
    }
    const ShardView& view = rig.owner(r).view();
    const std::vector<GroupRule> groups = view.Describe().groups;
    EXPECT_EQ(RulesText(groups), "sgd+nadam");
    EXPECT_EQ(groups[0].hyperparameters.Number("momentum"), 0.5);
    EXPECT_EQ(groups[1].hyperparameters.Number("momentum_decay"), 4e-3);
    for (const OwnedSlice& slice : view.Slices(0, 1000)) {
      std::vector<double> value(1);
      const auto read = [&](const std::string& slot) {
        return view.ReadSlot(slice.parameter, slot, 0, absl::MakeSpan(value)).status();
      };
      if (slice.group == 0) {
        EXPECT_THAT(slice.slots, ElementsAre("momentum_buffer"));
        EXPECT_THAT(Text(read("mu_product")), HasSubstr("rule sgd keeps: momentum_buffer"));
      } else {
        EXPECT_THAT(slice.slots, ElementsAre("exp_avg", "exp_avg_sq", "mu_product", "step"));
        EXPECT_EQ(read("mu_product"), absl::OkStatus());
        EXPECT_EQ(value[0], follower.oracle().scalar_slots(slice.parameter)[0]);
      }
    }
  }
}

TEST(ShardOwner_AfterAnError_IsBroken, EachCallReturnsTheFirstError) {
  OwnerRig rig(OwnerRig::MixedOptions(2));
  ExpectOk(rig.Start());
  rig.GiveGradients(1);
  ExpectOk(rig.Step());
  rig.owner(0).AbortPlane(errors::PeerLost(1, "said by the test"));
  const absl::Status first = rig.owner(0).Step(rig.InputOf(0)).status();
  EXPECT_TRUE(errors::IsPeerLost(first)) << first;
  EXPECT_EQ(rig.owner(0).Step(rig.InputOf(0)).status(), first);
  EXPECT_EQ(rig.owner(0).failure(), first);
  EXPECT_EQ(rig.owner(0).SyncParameters(rig.replica(0).tensors(), rig.replica(0).regions(),
                                        absl::Seconds(1)),
            first);
  // Nothing was applied: what the last step left can be read.
  const OwnedSlice slice = rig.owner(0).view().Slices(0, 1)[0];
  std::vector<double> values(slice.elements);
  EXPECT_TRUE(rig.owner(0)
                  .view()
                  .ReadSlot(slice.parameter, slice.slots[0], 0, absl::MakeSpan(values))
                  .ok());
}

TEST(ShardOwner_StepRefusedByAll_IsNotBroken, TheNextStepWorks) {
  OwnerRig rig(OwnerRig::MixedOptions(2));
  ExpectOk(rig.Start());
  Follower follower(rig);
  for (const double wrong : {0.5, -1.0}) {
    rig.GiveGradients(1);
    rig.owner_options(1).spec.rules[0].hyperparameters.Set("lr", wrong);
    for (const absl::StatusOr<StepInfo>& result : rig.Step()) {
      EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
      EXPECT_THAT(Text(result.status()), HasSubstr("lr"));
    }
    rig.owner_options(1).spec.rules[0].hyperparameters.Set("lr", 0.001);
    for (Rank r = 0; r < 2; ++r) {
      EXPECT_TRUE(rig.owner(r).failure().ok());
      EXPECT_EQ(rig.owner(r).view().Describe().progress.outcome, StepOutcome::kIdle);
    }
    ExpectOk(rig.Step());
    follower.Step();
  }
  EXPECT_EQ(BitDifference(follower.oracle().Parameter(0), rig.replica(1).Parameter(0)), "");
  ExpectOk(rig.Stop());
}

TEST(ShardOwner_Stopped, RefusesAndStopsOnlyOnce) {
  OwnerRig rig(OwnerRig::MixedOptions(2));
  ExpectOk(rig.Start());
  ExpectOk(rig.Stop());
  ExpectOk(rig.Stop());
  EXPECT_EQ(rig.owner(0).Step(rig.InputOf(0)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const absl::StatusOr<JobStatus> status = rig.coordinator().GetStatus(absl::InfiniteFuture());
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->groups[0].state, GroupState::kFinished);
}

// --- Looking in.

TEST(ShardOwnerView_BadQuestion, IsAnsweredWithWhatThereIs) {
  OwnerRig::Options options = OwnerRig::MixedOptions(2);
  options.owner.spec.policy = PartitionPolicy::kBalanced;
  OwnerRig rig(options);
  ExpectOk(rig.Start());
  const ShardView& view = rig.owner(0).view();
  std::vector<double> out(4);
  const auto read = [&](int parameter, const std::string& slot, int64_t offset) {
    return view.ReadSlot(parameter, slot, offset, absl::MakeSpan(out)).status();
  };
  EXPECT_EQ(read(99, "exp_avg", 0).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(read(-1, "exp_avg", 0).code(), absl::StatusCode::kNotFound);
  const absl::Status slot = read(0, "momentum_buffer", 0);
  EXPECT_EQ(slot.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Text(slot), HasSubstr("exp_avg, exp_avg_sq, step"));
  // The first parameter that is not all owned here: reading past the own part.
  for (const OwnedSlice& slice : view.Slices(0, 100)) {
    const absl::Status past =
        read(slice.parameter, "exp_avg", slice.offset_elements + slice.elements - 2);
    EXPECT_EQ(past.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(Text(past), HasSubstr(absl::StrCat("[", slice.offset_elements, ", ",
                                                   slice.offset_elements + slice.elements, ")")));
  }
  EXPECT_EQ(read(0, "exp_avg", -1).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(read(view.Slices(0, 1)[0].parameter, "step", 0).code(), absl::StatusCode::kOutOfRange);
  const int64_t largest = std::numeric_limits<int64_t>::max();
  const int32_t own = view.Slices(0, 1)[0].parameter;
  for (const char* slot : {"exp_avg", "step"}) {
    for (const int64_t offset : {largest, largest - 2, largest - 4}) {
      EXPECT_EQ(read(own, slot, offset).code(), absl::StatusCode::kOutOfRange) << slot << offset;
    }
    EXPECT_EQ(view.ReadSlot(own, slot, largest, {}).status().code(), absl::StatusCode::kOutOfRange);
  }
  EXPECT_TRUE(view.Slices(1000, 10).empty());
  EXPECT_TRUE(view.Slices(largest, largest).empty());
  EXPECT_EQ(view.Slices(1, 1)[0].parameter, view.Slices(0, 2)[1].parameter);
  ExpectOk(rig.Stop());
}

TEST(ShardOwnerView_ReadWhileStepsRun, GivesValuesOfExactlyOneStep) {
  OwnerRig::Options options = OwnerRig::MixedOptions(2);
  options.owner.threads = 2;
  OwnerRig rig(options);
  ExpectOk(rig.Start());
  Follower follower(rig);
  constexpr int kSteps = 60;

  struct Sample {
    Rank rank;
    int32_t parameter;
    int slot;
    StepNumber step;
    Values values;
  };
  std::vector<Sample> samples;
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      for (Rank r = 0; r < 2; ++r) {
        for (const OwnedSlice& slice : rig.owner(r).view().Slices(0, 100)) {
          for (int s = 0; s < 2; ++s) {
            Sample sample{r, slice.parameter, s, 0, Values(slice.elements)};
            const absl::StatusOr<SlotRead> read = rig.owner(r).view().ReadSlot(
                slice.parameter, slice.slots[s], 0, absl::MakeSpan(sample.values));
            if (absl::IsAborted(read.status())) continue;
            ASSERT_TRUE(read.ok()) << read.status();
            sample.step = read->step;
            samples.push_back(std::move(sample));
          }
        }
        rig.owner(r).view().Describe();
        rig.owner(r).view().Timeline();
      }
    }
  });
  std::map<StepNumber, std::map<std::pair<int, int>, Values>> truth;
  for (int step = 0; step <= kSteps; ++step) {
    if (step > 0) {
      rig.GiveGradients(step);
      ExpectOk(rig.Step());
      follower.Step();
    }
    for (int p = 0; p < rig.space().parameter_count(); ++p) {
      for (int s = 0; s < 2; ++s) truth[step][{p, s}] = follower.oracle().Slot(p, s);
    }
  }
  done = true;
  reader.join();
  EXPECT_GT(samples.size(), 20);
  for (const Sample& sample : samples) {
    ASSERT_EQ(BitDifference(truth[sample.step][{sample.parameter, sample.slot}], sample.values), "")
        << "rank " << sample.rank << ", parameter " << sample.parameter << ", slot " << sample.slot
        << ", said to be of step " << sample.step;
  }
  ExpectOk(rig.Stop());
}

}  // namespace
}  // namespace optshard::testing
