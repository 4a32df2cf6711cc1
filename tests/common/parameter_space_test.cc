#include "common/parameter_space.h"

#include <functional>
#include <limits>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random_space.h"

namespace optshard {
namespace {

using Groups = std::vector<GroupSpec>;

using ::testing::HasSubstr;

constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();

ParameterSpace Example() {
  return ParameterSpace(
      Groups{{{{"conv.weight", {32, 1, 3, 3}}, {"conv.bias", {32}}}},
             {},
             {{{"fc.weight", {10, 64}, DType::kFloat16, "cuda:0"}, {"scale", {}}}}});
}

TEST(ParameterSpec, Elements_OfShapes_AreTheProductAndNeverOverflow) {
  const auto elements = [](std::vector<int64_t> shape) {
    return ParameterSpec{"p", std::move(shape)}.elements();
  };
  EXPECT_EQ(elements({}), 1);
  EXPECT_EQ(elements({2, 3, 4}), 24);
  EXPECT_EQ(elements({5, 0}), 0);
  EXPECT_EQ(elements({kMaxInt, kMaxInt, 0}), 0);
  EXPECT_EQ(elements({kMaxInt}), kMaxInt);
  EXPECT_EQ(elements({int64_t{1} << 32, int64_t{1} << 31}), kMaxInt);
  EXPECT_EQ(elements({-3, -5}), 0);
  EXPECT_EQ(elements({std::numeric_limits<int64_t>::min(), 2}), 0);
}

TEST(ParameterSpace, Numbering_OverGroups_IsConsecutiveInOrder) {
  const ParameterSpace space = Example();
  EXPECT_TRUE(space.Validate().ok());
  ASSERT_EQ(space.parameter_count(), 4);
  EXPECT_EQ(space.group_count(), 3);
  const char* names[] = {"conv.weight", "conv.bias", "fc.weight", "scale"};
  const int groups[] = {0, 0, 2, 2};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(space.parameter(i).name, names[i]);
    EXPECT_EQ(space.group_of(i), groups[i]);
  }
  EXPECT_EQ(space.total_elements(), 288 + 32 + 640 + 1);
}

TEST(ParameterSpace, Empty_Asked_IsValid) {
  EXPECT_TRUE(ParameterSpace().Validate().ok());
  EXPECT_EQ(ParameterSpace().parameter_count(), 0);
  EXPECT_EQ(ParameterSpace().total_elements(), 0);
}

TEST(ParameterSpace, Validate_BadParameters_NamesThemAndTheReason) {
  const struct {
    ParameterSpec bad;
    std::vector<std::string> says;
  } kTable[] = {
      {{"", {1}}, {"parameter 1 (group 1)", "no name"}},
      {{"a", {1}}, {"parameter 1 (group 1) \"a\"", "parameter 0 has the same name"}},
      {{"b", {4, -2}}, {"\"b\"", "[4, -2]", "negative"}},
      {{"b", {1}, static_cast<DType>(77)}, {"\"b\"", "77"}},
      {{"b", {1}, DType::kFloat32, ""}, {"\"b\"", "no device"}},
      {{"b", {kMaxInt}}, {"\"b\"", "[9223372036854775807]", "more than"}},
      {{"b", {kMaxInt, kMaxInt}}, {"\"b\"", "more than"}},
      {{"b", {int64_t{1} << 58}}, {"\"b\"", "more than 1152921504606846976 bytes"}},
  };
  for (const auto& row : kTable) {
    const ParameterSpace space(Groups{{{{"a", {1}}}}, {{row.bad}}});
    const absl::Status status = space.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    for (const std::string& part : row.says) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
  }
}

TEST(ParameterSpace, Validate_AtTheLimitOfBytes_IsFine) {
  EXPECT_TRUE(ParameterSpace(Groups{{{{"a", {int64_t{1} << 58}}}}}).Validate().ok());
}

TEST(ParameterSpace, Validate_CostsThatNoSumHolds_NameTheParameter) {
  ParameterSpec a{"a", {1}};
  a.update_cost = kMaxSpaceUpdateCost;
  ParameterSpec b{"b", {1}};
  EXPECT_TRUE(ParameterSpace(Groups{{{a, b}}}).Validate().ok());
  for (const int64_t cost : {int64_t{1}, std::numeric_limits<int64_t>::max(), int64_t{-1}}) {
    b.update_cost = cost;
    const absl::Status status = ParameterSpace(Groups{{{a, b}}}).Validate();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << cost;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"b\": its update cost"));
  }
}

TEST(ParameterSpace, Validate_MainGradientOfAnotherThanA16BitParameter_NamesIt) {
  ParameterSpec parameter = {"w", {3}, DType::kFloat16};
  parameter.main_gradient = true;
  EXPECT_TRUE(ParameterSpace(Groups{{{parameter}}}).Validate().ok());
  parameter.dtype = DType::kFloat64;
  const absl::Status status = ParameterSpace(Groups{{{parameter}}}).Validate();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(R"("w": it is float64 and has)"));
}

TEST(ParameterSpace, Validate_AdmissionsThatDoNotFollowEachOther_NameTheGroup) {
  const auto with = [](const std::vector<int>& admissions) {
    Groups groups(admissions.size());
    for (size_t g = 0; g < groups.size(); ++g) groups[g].admission = admissions[g];
    return ParameterSpace(std::move(groups)).Validate();
  };
  EXPECT_TRUE(with({0, 0, 1, 1, 2}).ok());
  EXPECT_THAT(std::string(with({1}).message()),
              HasSubstr("group 0 came by admission 1, expected 0"));
  EXPECT_THAT(std::string(with({0, 2}).message()),
              HasSubstr("group 1 came by admission 2, expected 0 to 1"));
  EXPECT_THAT(std::string(with({0, 0, 2}).message()),
              HasSubstr("nothing came by admission 1, expected something by each"));
  EXPECT_THAT(std::string(with({0, 1, 0}).message()), HasSubstr("group 2 came by admission 0"));
  EXPECT_TRUE(absl::IsInvalidArgument(with({0, -1})));
}

// Group 0: a, b, then d by admission 1 and e by admission 3; group 1: c, then f by admission 3;
// group 2, by admission 2: g.
Groups WithAdditions() {
  Groups groups = {{{{"a", {1}}, {"b", {2}}, {"d", {4}}, {"e", {5}}}},
                   {{{"c", {3}}, {"f", {6}}}},
                   {{{"g", {7}}}, 2}};
  groups[0].additions = {{2, 1}, {3, 3}};
  groups[1].additions = {{1, 3}};
  return groups;
}

TEST(ParameterSpace, Additions_Asked_IndicesAreInTheOrderInWhichParametersCame) {
  const ParameterSpace space(WithAdditions());
  EXPECT_TRUE(space.Validate().ok()) << space.Validate();
  EXPECT_EQ(space.admission_count(), 4);
  const char* const names[] = {"a", "b", "c", "d", "g", "e", "f"};
  const int groups[] = {0, 0, 1, 0, 2, 0, 1};
  const int admissions[] = {0, 0, 0, 1, 2, 3, 3};
  const int positions[] = {0, 1, 4, 2, 6, 3, 5};
  ASSERT_EQ(space.parameter_count(), 7);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(space.parameter(i).name, names[i]);
    EXPECT_EQ(space.group_of(i), groups[i]) << i;
    EXPECT_EQ(space.admission_of(i), admissions[i]) << i;
    EXPECT_EQ(space.position_of(i), positions[i]) << i;
    EXPECT_EQ(space.index_at(positions[i]), i) << i;
  }
}

TEST(ParameterSpace, Validate_AdditionsThatDoNotFollowEachOther_NameTheGroup) {
  const auto with = [](const std::vector<GroupSpec::Addition>& additions) {
    Groups groups = WithAdditions();
    groups[0].additions = additions;
    return ParameterSpace(std::move(groups)).Validate();
  };
  constexpr int kMost = std::numeric_limits<int>::max();
  constexpr int kLeast = std::numeric_limits<int>::min();
  EXPECT_TRUE(with({{0, 1}, {2, 3}}).ok());  // of a group that was empty
  EXPECT_THAT(std::string(with({{3, 3}}).message()), HasSubstr("nothing came by admission 1"));
  for (const auto& bad : std::vector<std::vector<GroupSpec::Addition>>{{{2, 1}, {4, 3}},
                                                                       {{2, 1}, {2, 3}},
                                                                       {{2, 1}, {3, 1}},
                                                                       {{2, 3}, {3, 1}},
                                                                       {{2, 0}},
                                                                       {{-1, 1}},
                                                                       {{2, -1}},
                                                                       {{2, 1}, {3, 9}},
                                                                       {{2, kMost}},
                                                                       {{kMost, 1}},
                                                                       {{kLeast, kLeast}}}) {
    const absl::Status status = with(bad);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("group 0 of 4 parameters has an addition"))
        << bad.back().first << " by " << bad.back().admission;
  }
}

TEST(FirstDifference, OnlyTheAdmission_Differs_NamesTheParameter) {
  const Groups at_once = {{{{"a", {1}}, {"b", {2}}}}};
  Groups later = at_once;
  later[0].additions = {{1, 1}};
  EXPECT_EQ(
      FirstDifference(ParameterSpace(at_once), "rank 0", ParameterSpace(later), "rank 1").value(),
      "parameter 1 (group 0) \"b\": rank 0 has it by admission 0, rank 1 by admission 1");
  EXPECT_NE(ParameterSpace(at_once).Digest(), ParameterSpace(later).Digest());
}

// One change of Example each.
std::vector<std::pair<std::string, ParameterSpace>> Changed() {
  std::vector<std::pair<std::string, ParameterSpace>> changed;
  const auto change = [&](const std::string& name,
                          const std::function<void(std::vector<GroupSpec>&)>& by) {
    std::vector<GroupSpec> groups = Example().groups();
    by(groups);
    changed.emplace_back(name, ParameterSpace(std::move(groups)));
  };
  change("name", [](auto& g) { g[0].parameters[1].name = "conv.biaz"; });
  change("shape", [](auto& g) { g[2].parameters[0].shape = {64, 10}; });
  change("rank of the shape", [](auto& g) { g[0].parameters[1].shape = {32, 1}; });
  change("dtype", [](auto& g) { g[2].parameters[1].dtype = DType::kFloat64; });
  change("dtype of the gradient", [](auto& g) { g[2].parameters[1].main_gradient = true; });
  change("device", [](auto& g) { g[2].parameters[0].device = "cuda:1"; });
  change("update cost", [](auto& g) { g[2].parameters[0].update_cost = 7; });
  change("order", [](auto& g) { std::swap(g[0].parameters[0], g[0].parameters[1]); });
  change("group", [](auto& g) {
    g[1].parameters.push_back(g[0].parameters[1]);
    g[0].parameters.pop_back();
  });
  change("one less", [](auto& g) { g[2].parameters.pop_back(); });
  change("one more", [](auto& g) { g[2].parameters.push_back({"more", {1}}); });
  change("admission", [](auto& g) { g[2].admission = 1; });
  change("addition", [](auto& g) { g[0].additions = {{1, 1}}; });
  change("an empty group more", [](auto& g) { g.emplace_back(); });
  change("text moved from name to device", [](auto& g) {
    g[2].parameters[0].name = "fc.weigh";
    g[2].parameters[0].device = "tcuda:0";
  });
  return changed;
}

TEST(ParameterSpace, Digest_AnyChange_Changes) {
  std::set<uint64_t> digests = {Example().Digest()};
  for (const auto& [what, space] : Changed()) {
    EXPECT_TRUE(digests.insert(space.Digest()).second) << what;
  }
  EXPECT_TRUE(digests.insert(ParameterSpace().Digest()).second);
  EXPECT_EQ(Example().Digest(), Example().Digest());
}

TEST(ParameterSpace, Digest_RandomSpaces_EqualJustWhenNoDifference) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const ParameterSpace a = RandomSpace(seed);
    EXPECT_EQ(a.Digest(), RandomSpace(seed).Digest()) << "seed " << seed;
    EXPECT_FALSE(FirstDifference(a, "a", RandomSpace(seed), "b").has_value()) << "seed " << seed;
    const ParameterSpace b = RandomSpace(seed + 1);
    EXPECT_EQ(a.Digest() == b.Digest(), !FirstDifference(a, "a", b, "b").has_value())
        << "seed " << seed;
  }
}

TEST(FirstDifference, AnyChange_Found_WhicheverSideHasIt) {
  for (const auto& [what, space] : Changed()) {
    EXPECT_TRUE(FirstDifference(Example(), "rank 0", space, "rank 1").has_value()) << what;
    EXPECT_TRUE(FirstDifference(space, "rank 0", Example(), "rank 1").has_value()) << what;
  }
}

TEST(FirstDifference, Shape_Differs_ShowsBothSides) {
  const ParameterSpace a(Groups{{{{"fc.weight", {10, 64}}, {"x", {1}}}}});
  const ParameterSpace b(Groups{{{{"fc.weight", {10, 65}}, {"y", {1}}}}});
  EXPECT_EQ(FirstDifference(a, "rank 0", b, "rank 1").value(),
            "parameter 0 (group 0): rank 0 has \"fc.weight\" float32 [10, 64], rank 1 has "
            "\"fc.weight\" float32 [10, 65]");
}

TEST(FirstDifference, OnlyTheDevice_Differs_ShowsDevices) {
  const ParameterSpace a(Groups{{{{"w", {1}}}}});
  const ParameterSpace b(Groups{{{{"w", {1}, DType::kFloat32, "cuda:0"}}}});
  EXPECT_EQ(FirstDifference(a, "rank 0", b, "rank 1").value(),
            "parameter 0 (group 0): rank 0 has \"w\" float32 [1] on \"cpu\", rank 1 has \"w\" "
            "float32 [1] on \"cuda:0\"");
}

TEST(FirstDifference, OnlyTheGradient_Differs_SaysSo) {
  ParameterSpec with = {"w", {1}, DType::kBFloat16};
  with.main_gradient = true;
  const ParameterSpace a(Groups{{{{"w", {1}, DType::kBFloat16}}}});
  const ParameterSpace b(Groups{{{with}}});
  EXPECT_EQ(FirstDifference(a, "rank 0", b, "rank 1").value(),
            "parameter 0 (group 0): rank 0 has \"w\" bfloat16 [1], rank 1 has \"w\" bfloat16 [1] "
            "with a float32 gradient");
}

TEST(FirstDifference, OnlyTheUpdateCost_Differs_ShowsCosts) {
  ParameterSpec costly = {"w", {1}};
  costly.update_cost = 7;
  const ParameterSpace a(Groups{{{{"w", {1}}}}});
  const ParameterSpace b(Groups{{{costly}}});
  EXPECT_EQ(
      FirstDifference(a, "rank 0", b, "rank 1").value(),
      "parameter 0 (group 0): rank 0 has \"w\" float32 [1] with the update cost 0, rank 1 has "
      "\"w\" float32 [1] with the update cost 7");
}

TEST(FirstDifference, OneIsLonger_SaysWhichAndWithWhat) {
  const ParameterSpace a(Groups{{{{"w", {1}}}}});
  const ParameterSpace b(Groups{{{{"w", {1}}}}, {{{"v", {}}}}});
  const std::string expected =
      "parameter 1 (group 1): rank 1 has \"v\" float32 [], rank 0 has only 1 parameters";
  EXPECT_EQ(FirstDifference(a, "rank 0", b, "rank 1").value(), expected);
  EXPECT_EQ(FirstDifference(b, "rank 1", a, "rank 0").value(), expected);
}

TEST(FirstDifference, Groups_Differ_SaysBoth) {
  const ParameterSpace a(Groups{{{{"w", {1}}, {"v", {1}}}}});
  const ParameterSpace b(Groups{{{{"w", {1}}}}, {{{"v", {1}}}}});
  EXPECT_EQ(FirstDifference(a, "rank 0", b, "rank 1").value(),
            "parameter 1: rank 0 has \"v\" float32 [1] in group 0, rank 1 has \"v\" float32 [1] in "
            "group 1");
}

}  // namespace
}  // namespace optshard
