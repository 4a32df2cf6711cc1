#include "common/spec_growth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace optshard {
namespace {

using ::testing::HasSubstr;

GroupSpec Group(const std::string& name, int admission) {
  ParameterSpec parameter;
  parameter.name = name;
  parameter.shape = {4, 2};
  GroupSpec group;
  group.parameters = {parameter};
  group.admission = admission;
  return group;
}

OptimizerSpec Spec(std::vector<GroupSpec> groups) {
  OptimizerSpec spec;
  spec.world_size = 2;
  spec.rules.resize(groups.size(), {"adam"});
  spec.space = ParameterSpace(std::move(groups));
  return spec;
}

std::string Error(const OptimizerSpec& present, const OptimizerSpec& next) {
  const absl::Status status = CheckGrowth(present, next);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(SpecGrowth, GroupsOfOneAdmissionMore_AreFine) {
  const OptimizerSpec present = Spec({Group("a", 0)});
  const OptimizerSpec grown = Spec({Group("a", 0), Group("b", 1), Group("c", 1)});
  EXPECT_EQ(CheckGrowth(present, grown), absl::OkStatus());
  const OptimizerSpec more = Spec({Group("a", 0), Group("b", 1), Group("c", 1), Group("d", 2)});
  EXPECT_EQ(CheckGrowth(grown, more), absl::OkStatus());
}

// "b" is added to the group of "a".
GroupSpec GroupWithB(int admission) {
  GroupSpec group = Group("a", 0);
  group.parameters.push_back(Group("b", 0).parameters[0]);
  group.additions = {{1, admission}};
  return group;
}

TEST(SpecGrowth, ParametersOfOneAdmissionMore_AreFine) {
  const OptimizerSpec grown = Spec({GroupWithB(1), Group("c", 0)});
  EXPECT_EQ(CheckGrowth(Spec({Group("a", 0), Group("c", 0)}), grown), absl::OkStatus());
  EXPECT_EQ(CheckGrowth(grown, Spec({GroupWithB(1), Group("c", 0), Group("d", 2)})),
            absl::OkStatus());
  EXPECT_EQ(CheckGrowth(Spec({Group("a", 0), Group("c", 1)}), Spec({GroupWithB(2), Group("c", 1)})),
            absl::OkStatus());
}

TEST(SpecGrowth, BeforeTheLastAdmission_IsTheSpecThatThereWas) {
  const auto group_with = [](std::vector<GroupSpec::Addition> additions) {
    GroupSpec group = Group("a", 0);
    for (const char* name : {"b", "c"}) {
      if (group.parameters.size() > additions.size()) break;
      group.parameters.push_back(Group(name, 0).parameters[0]);
    }
    group.additions = std::move(additions);
    return group;
  };
  const OptimizerSpec specs[] = {
      Spec({group_with({}), Group("d", 0)}),
      Spec({group_with({{1, 1}}), Group("d", 0)}),
      Spec({group_with({{1, 1}, {2, 2}}), Group("d", 0)}),
      Spec({group_with({{1, 1}, {2, 2}}), Group("d", 0), Group("e", 3)}),
  };
  for (int i = 0; i < 3; ++i) {
    const OptimizerSpec before = BeforeLastAdmission(specs[i + 1]);
    EXPECT_EQ(before.Validate(), absl::OkStatus()) << i;
    EXPECT_EQ(before.Digest(), specs[i].Digest()) << i;
  }
}

TEST(SpecGrowth, ParametersThatDiffer_AreNamedWithBothSides) {
  const OptimizerSpec to_first = Spec({GroupWithB(1), Group("c", 0)});
  OptimizerSpec as_group = Spec({Group("a", 0), Group("c", 0), Group("b", 1)});
  EXPECT_NE(GrowthDigest(to_first), GrowthDigest(as_group));
  EXPECT_EQ(FirstGrowthDifference(to_first, "rank 0", as_group, "rank 1"),
            "parameter 2: rank 0 has \"b\" float32 [4, 2] in group 0, rank 1 has \"b\" float32 "
            "[4, 2] in group 2");
  EXPECT_THAT(Error(Spec({Group("a", 0), Group("c", 0)}), Spec({Group("z", 0), GroupWithB(1)})),
              HasSubstr("\"z\""));
}

TEST(SpecGrowth, NoneOrTwoAdmissionsMore_AreNot) {
  const OptimizerSpec present = Spec({Group("a", 0)});
  EXPECT_THAT(Error(present, present), HasSubstr("1 admissions, expected 2"));
  EXPECT_THAT(Error(present, Spec({Group("a", 0), Group("b", 1), Group("c", 2)})),
              HasSubstr("3 admissions, expected 2"));
}

TEST(SpecGrowth, WhatIsThereChanges_IsNamed) {
  const OptimizerSpec present = Spec({Group("a", 0)});
  EXPECT_THAT(Error(present, Spec({Group("z", 0), Group("b", 1)})), HasSubstr("\"z\""));
  OptimizerSpec other = Spec({Group("a", 0), Group("b", 1)});
  other.rules[0].name = "sgd";
  EXPECT_THAT(Error(present, other), HasSubstr("update rule of param group 0"));
  other = Spec({Group("a", 0), Group("b", 1)});
  other.policy = PartitionPolicy::kBalanced;
  EXPECT_THAT(Error(present, other), HasSubstr("partition policy"));
}

TEST(SpecGrowth, SpecThatIsNotValid_IsRefused) {
  EXPECT_THAT(Error(Spec({Group("a", 0)}), Spec({Group("a", 0), Group("a", 1)})),
              HasSubstr("same name"));
}

TEST(SpecGrowth, OptionsOfTheAddedGroups_AreComparedAndThoseOfTheOthersAreNot) {
  OptimizerSpec a = Spec({Group("a", 0), Group("b", 1)});
  for (GroupRule& rule : a.rules) rule.hyperparameters.Set("lr", 0.5);
  OptimizerSpec b = a;
  b.rules[0].hyperparameters.Set("lr", 0.25);
  EXPECT_EQ(GrowthDigest(a), GrowthDigest(b));
  EXPECT_FALSE(FirstGrowthDifference(a, "rank 0", b, "rank 1").has_value());
  b.rules[1].hyperparameters.Set("amsgrad", true);
  EXPECT_NE(GrowthDigest(a), GrowthDigest(b));
  EXPECT_EQ(FirstGrowthDifference(a, "rank 0", b, "rank 1"),
            "option \"amsgrad\" of param group 1: rank 0 has none, rank 1 has true");
  b = a;
  b.rules[1].hyperparameters.Set("lr", 0.125);
  EXPECT_NE(GrowthDigest(a), GrowthDigest(b));
  EXPECT_EQ(FirstGrowthDifference(a, "rank 0", b, "rank 1"),
            "option \"lr\" of param group 1: rank 0 has 0.5, rank 1 has 0.125");
}

}  // namespace
}  // namespace optshard
