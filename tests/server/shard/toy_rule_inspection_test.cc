// A rule that is added as one file (tests/server/update/toy_rule.cc): stepping and looking in
// follow from its declaration.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/parameter_space.h"
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

// row_var and col_var of matrices, variance of the rest, on whatever rank has the parameter.
TEST(Adafactor_LookedInto_ShowsAndReadsSlotsInTheirOwnShapes, WithoutFurtherCode) {
  OwnerRig::Options options = OwnerRig::MixedOptions(2);
  options.owner.spec.rules = {{"adafactor"}, {"adafactor"}};
  OwnerRig rig(options);
  for (const absl::Status& status : rig.Start()) ASSERT_TRUE(status.ok()) << status;
  rig.GiveGradients(1);
  for (const auto& result : rig.Step()) ASSERT_TRUE(result.ok()) << result.status();
  for (Rank r = 0; r < 2; ++r) {
    const ShardView& view = rig.owner(r).view();
    int64_t state_bytes = 0;
    for (const OwnedSlice& slice : view.Slices(0, 1000)) {
      SCOPED_TRACE(slice.name);
      state_bytes += slice.state_bytes;
      std::vector<double> values(slice.elements);
      const auto read = [&](const std::string& slot, int64_t offset, int64_t count) {
        values.assign(count, 0.0);
        return view.ReadSlot(slice.parameter, slot, offset, absl::MakeSpan(values)).status();
      };
      if (slice.shape.size() < 2 || slice.elements == 0) {
        EXPECT_THAT(slice.slots, ElementsAre("variance", "step"));
        EXPECT_EQ(slice.state_bytes, slice.elements * 4);
        EXPECT_EQ(read("variance", 0, slice.elements), absl::OkStatus());
        continue;
      }
      EXPECT_THAT(slice.slots, ElementsAre("row_var", "col_var", "step"));
      std::vector<int64_t> rows = slice.shape;
      rows.back() = 1;
      EXPECT_EQ(slice.slot_shapes.at("row_var"), rows);
      const int64_t count = ElementsOf(rows);
      const int64_t columns = ElementsOf(slice.slot_shapes.at("col_var"));
      EXPECT_EQ(slice.state_bytes, (count + columns) * 4);
      EXPECT_EQ(read("col_var", 0, columns), absl::OkStatus());
      EXPECT_EQ(read("row_var", 0, count), absl::OkStatus());
      EXPECT_GT(values.back(), 0);
      EXPECT_THAT(read("row_var", 1, count).ToString(),
                  HasSubstr(absl::StrCat("slot \"row_var\" has ", count, " elements")));
      EXPECT_THAT(read("variance", 0, 1).ToString(),
                  HasSubstr("adafactor keeps: row_var, col_var"));
    }
    EXPECT_EQ(view.Describe().state_bytes, state_bytes);
  }
}

}  // namespace
}  // namespace optshard::testing
