// What follows from adding toy_rule.cc. That its bits are equal in all drivers is shown by
// rule_bits.cc, which runs every rule that is linked into it.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/update/update_rule.h"

namespace optshard {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

const UpdateRule& Toy() { return **RuleRegistry::Find("toy"); }

TEST(ToyRuleTest, Registry_ToyLinkedIn_FindsAndListsIt) {
  ASSERT_TRUE(RuleRegistry::Find("toy").ok());
  EXPECT_THAT(RuleRegistry::All(), Contains(&Toy()));
  EXPECT_THAT(std::string(RuleRegistry::Find("tyo").status().message()), HasSubstr(", toy"));
}

TEST(ToyRuleTest, Validate_ToyOptions_DefaultsRangesAndNames) {
  EXPECT_EQ(Toy().Validate({})->ToString(), "bound=2 keep_largest=false lr=0.5");
  Hyperparameters given;
  given.Set("bound", -1.0);
  EXPECT_EQ(Toy().Validate(given).status().message(),
            "rule \"toy\": option \"bound\" is -1; it must be a finite number, >= 0");
  given = {};
  given.Set("betas", Numbers{0.9, 0.999});
  EXPECT_EQ(Toy().Validate(given).status().message(),
            "rule \"toy\" has no option \"betas\"; it has lr, bound, keep_largest");
}

TEST(ToyRuleTest, Slots_StructuralOption_DecidesAndIsFixed) {
  const Hyperparameters plain = *Toy().Validate({});
  Hyperparameters given;
  given.Set("keep_largest", true);
  const Hyperparameters keeping = *Toy().Validate(given);
  EXPECT_EQ(Toy().Slots(plain).size(), 1u);
  ASSERT_EQ(Toy().Slots(keeping).size(), 2u);
  EXPECT_EQ(Toy().Slots(keeping)[1].name, "largest");
  EXPECT_THAT(std::string(Toy().ValidateChange(plain, keeping).message()),
              HasSubstr("\"keep_largest\" was constructed as false and is now true"));
}

TEST(ToyRuleTest, Update_OneElement_IsTheFormula) {
  for (DriverKind driver : {DriverKind::kScalar, DriverKind::kSimd}) {
    float parameter = 3, size = 0, largest = 1;
    const float gradient = -16;
    SpanUpdate span;
    span.parameter = &parameter;
    span.gradient = &gradient;
    span.slots = {&size, &largest};
    span.elements = 1;
    Hyperparameters given;
    given.Set("bound", 4.0);
    given.Set("keep_largest", true);
    Toy().Update(driver, Toy().Prepare(*Toy().Validate(given), 1), span);
    EXPECT_EQ(size, 1);
    EXPECT_EQ(largest, 1);
    EXPECT_EQ(parameter, 3 + 0.5f * 4 / 2);
  }
}

TEST(ToyRuleTest, Update_BoundOfZero_TakesTheOtherBranch) {
  for (DriverKind driver : {DriverKind::kScalar, DriverKind::kSimd}) {
    std::vector<float> parameters(40, 3.0f), sizes(40, 0.0f);
    const std::vector<float> gradients(40, -16.0f);
    SpanUpdate span;
    span.parameter = parameters.data();
    span.gradient = gradients.data();
    span.slots = {sizes.data()};
    span.elements = 40;
    Hyperparameters given;
    given.Set("bound", 0.0);
    Toy().Update(driver, Toy().Prepare(*Toy().Validate(given), 1), span);
    EXPECT_THAT(sizes, Each(4.0f));
    EXPECT_THAT(parameters, Each(3 + 0.5f * 16 / 3));
  }
}

}  // namespace
}  // namespace optshard
