#include "server/update/group_validation.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

using ::testing::HasSubstr;

Hyperparameters Lr(double lr) {
  Hyperparameters values;
  values.Set("lr", lr);
  return values;
}

TEST(ValidateGroups_GoodGroups_ComeBackInOrder, WithTheRulesDefaults) {
  const UpdateRule& adam = **RuleRegistry::Find("adam");
  const auto groups = ValidateGroups(adam, {Lr(0.5), Lr(0.25)});
  ASSERT_TRUE(groups.ok()) << groups.status();
  ASSERT_EQ(groups->size(), 2u);
  EXPECT_EQ((*groups)[0], *adam.Validate(Lr(0.5)));
  EXPECT_EQ((*groups)[1], *adam.Validate(Lr(0.25)));
}

TEST(ValidateGroups_BadValue_IsRefused, NamingItsGroup) {
  const absl::Status status =
      ValidateGroups(**RuleRegistry::Find("adam"), {Lr(0.5), Lr(-2)}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("param group 1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("option \"lr\" is -2"));
}

}  // namespace
}  // namespace optshard
