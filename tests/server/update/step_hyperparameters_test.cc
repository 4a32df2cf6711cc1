#include "server/update/step_hyperparameters.h"

#include <string>
#include <vector>

#include "common/hyperparameters.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/update/group_update.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

// Two groups, as they were constructed.
class ValidateForStepTest : public ::testing::Test {
 protected:
  ValidateForStepTest()
      : given_(2), constructed_([] {
          OptimizerSpec spec;
          spec.rules = {{"sgd"}, {"adam"}};
          return ValidateGroups(spec).value();
        }()) {}

  void ExpectRefused(const std::string& text) const {
    const absl::Status status = ValidateForStep(constructed_, given_).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }

  std::vector<Hyperparameters> given_;
  const std::vector<GroupUpdate> constructed_;
};

TEST_F(ValidateForStepTest, ChangedValues_ComeBackWithTheRulesDefaults) {
  given_[1].Set("lr", 0.5);
  const auto validated = ValidateForStep(constructed_, given_);
  ASSERT_TRUE(validated.ok()) << validated.status();
  std::vector<Hyperparameters> expected = HyperparametersOf(constructed_);
  expected[1].Set("lr", 0.5);
  EXPECT_EQ(*validated, expected);
}

TEST_F(ValidateForStepTest, ValueOutOfItsRange_IsRefusedNamingItsGroup) {
  given_[1].Set("lr", -2.0);
  ExpectRefused("param group 1: rule \"adam\": option \"lr\" is -2");
}

TEST_F(ValidateForStepTest, ChangeThatNeedsOtherSlots_IsRefusedNamingItsGroup) {
  given_[1].Set("amsgrad", true);
  ExpectRefused("param group 1: rule \"adam\": option \"amsgrad\"");
}

TEST_F(ValidateForStepTest, AnotherNumberOfGroups_IsRefusedWithBothNumbers) {
  given_.pop_back();
  ExpectRefused("hyperparameters of 1 groups were given, expected those of 2");
}

}  // namespace
}  // namespace optshard
