// A rule that is added as one file (tests/server/update/toy_rule.cc): stepping and looking in
// follow from its declaration.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard/engine/engine_rig.h"
#include "tests/server/shard/owner_rig.h"

namespace optshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(ToyRule_SteppedSharded_EqualsOneProcessToTheBit, WithoutFurtherCode) {
  EngineRig::Options options;
  options.world_size = 3;
  options.rules = {{"toy"}, {"toy"}};
  options.rules[1].hyperparameters.Set("keep_largest", true);
  EngineRig rig(options);
  for (int step = 1; step <= 3; ++step) {
    rig.GiveAllGradients();
    for (const StepEngine::Result& result : rig.Step()) ASSERT_TRUE(result.status.ok());
    rig.StepOracleAlong();
  }
  EXPECT_EQ(rig.DifferenceToOracle(), "");
}

TEST(ToyRule_LookedInto_ShowsItsSlotsAndHyperparameters, WithoutFurtherCode) {
  OwnerRig::Options options = OwnerRig::MixedOptions(2);
  options.owner.spec.rules = {{"toy"}, {"toy"}};
  options.owner.spec.rules[1].hyperparameters.Set("keep_largest", true);
  OwnerRig rig(options);
  for (const absl::Status& status : rig.Start()) ASSERT_TRUE(status.ok()) << status;
  rig.GiveGradients(1);
  for (const auto& result : rig.Step()) ASSERT_TRUE(result.ok()) << result.status();
  const ShardView& view = rig.owner(0).view();
  const GroupRule group = view.Describe().groups[1];
  EXPECT_EQ(group.name, "toy");
  EXPECT_EQ(group.hyperparameters.ToString(), "bound=2 keep_largest=true lr=0.5");
  for (const OwnedSlice& slice : view.Slices(0, 100)) {
    if (slice.group == 0) {
      EXPECT_THAT(slice.slots, ElementsAre("size_avg", "lr_product"));
    } else {
      EXPECT_THAT(slice.slots, ElementsAre("size_avg", "largest", "lr_product"));
    }
    EXPECT_THAT(slice.slot_shapes, ElementsAre(Pair("lr_product", IsEmpty())));
    for (const std::string& slot : slice.slots) {
      std::vector<double> values(slot == "lr_product" ? 1 : slice.elements);
      EXPECT_TRUE(view.ReadSlot(slice.parameter, slot, 0, absl::MakeSpan(values)).ok()) << slot;
      if (slot == "lr_product") {
        EXPECT_THAT(values, ElementsAre(0.5));
      }
    }
    // The rule does not export the step count.
    const absl::Status step = view.ReadSlot(slice.parameter, "step", 0, {}).status();
    EXPECT_EQ(step.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(step.message()), HasSubstr("rule toy keeps: size_avg"));
  }
  for (const absl::Status& status : rig.Stop()) EXPECT_TRUE(status.ok()) << status;
}

TEST(ToyRule_BadOption_IsRefusedAtTheStart, WithoutFurtherCode) {
  OwnerRig::Options options = OwnerRig::MixedOptions(1);
  options.owner.spec.rules[0] = {"toy"};
  options.owner.spec.rules[0].hyperparameters.Set("bound", -1.0);
  OwnerRig rig(options);
  const absl::Status status = rig.Start()[0];
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("option \"bound\" is -1"));
}

}  // namespace
}  // namespace optshard::testing
