#include "common/memory_layout.h"

#include <set>

#include "gtest/gtest.h"
#include "tests/testing/random_space.h"

namespace optshard {
namespace {

using Groups = std::vector<GroupSpec>;

TEST(AlignedElements, AroundAUnit_RoundsUpTo64Bytes) {
  EXPECT_EQ(AlignedElements(0, DType::kFloat32), 0);
  EXPECT_EQ(AlignedElements(1, DType::kFloat32), 16);
  EXPECT_EQ(AlignedElements(16, DType::kFloat32), 16);
  EXPECT_EQ(AlignedElements(17, DType::kFloat32), 32);
  EXPECT_EQ(AlignedElements(1, DType::kFloat64), 8);
  EXPECT_EQ(AlignedElements(33, DType::kBFloat16), 64);
}

TEST(MemoryLayout, Parameters_ByGroupDTypeAndDevice_LieInOrder) {
  const ParameterSpace space(Groups{{{{"a", {10}},
                                      {"b", {5}, DType::kFloat16},
                                      {"c", {20}},
                                      {"d", {1}, DType::kFloat32, "cuda:0"}}},
                                    {{{"e", {3}}}}});
  const MemoryLayout layout(space);
  ASSERT_EQ(layout.regions().size(), 4u);
  const struct {
    int region;
    int64_t offset;
  } kExpected[] = {{0, 0}, {1, 0}, {0, 16}, {2, 0}, {3, 0}};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(layout.place(i).region, kExpected[i].region) << i;
    EXPECT_EQ(layout.place(i).offset_elements, kExpected[i].offset) << i;
  }
  EXPECT_EQ(layout.regions()[0].elements, 48);
  EXPECT_EQ(layout.regions()[0].bytes(), 192);
  EXPECT_EQ(layout.regions()[2].device, "cuda:0");
  EXPECT_EQ(layout.regions()[3].group, 1);
}

TEST(MemoryLayout, MainGradients_TakeRegionsOfTheirOwn_WithTheParametersPlaces) {
  ParameterSpec main = {"b", {33}, DType::kBFloat16};
  main.main_gradient = true;
  const ParameterSpace space(Groups{{{{"a", {1}, DType::kBFloat16}, main, main}}});
  const MemoryLayout layout(space);
  ASSERT_EQ(layout.regions().size(), 2u);
  EXPECT_EQ(layout.regions()[0].gradient_bytes(), layout.regions()[0].bytes());
  EXPECT_EQ(layout.regions()[1].gradient_dtype, DType::kFloat32);
  EXPECT_EQ(layout.regions()[1].bytes(), 256);
  EXPECT_EQ(layout.regions()[1].gradient_bytes(), 512);
  EXPECT_EQ(layout.place(2).offset_elements, 64);
  EXPECT_NE(MemoryLayout(ParameterSpace(Groups{{{main}}})).Digest(),
            MemoryLayout(ParameterSpace(Groups{{{{"b", {33}, DType::kBFloat16}}}})).Digest());
}

TEST(MemoryLayout, RandomSpaces_Places_AreAlignedDisjointAndFillTheRegion) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ParameterSpace space = RandomSpace(seed);
    const MemoryLayout layout(space);
    std::set<std::tuple<int, DType, std::string>> keys;
    for (const MemoryLayout::Region& region : layout.regions()) {
      ASSERT_TRUE(keys.emplace(region.group, region.dtype, region.device).second);
    }
    std::vector<int64_t> end(layout.regions().size(), 0);
    for (int i = 0; i < space.parameter_count(); ++i) {
      const MemoryLayout::Place& place = layout.place(i);
      const MemoryLayout::Region& region = layout.regions()[place.region];
      const ParameterSpec& spec = space.parameter(i);
      ASSERT_EQ(std::tie(region.dtype, region.device), std::tie(spec.dtype, spec.device));
      ASSERT_EQ(region.group, space.group_of(i));
      ASSERT_EQ(place.offset_elements * static_cast<int64_t>(SizeOf(spec.dtype)) % kAlignmentBytes,
                0);
      ASSERT_GE(place.offset_elements, end[place.region]);
      ASSERT_LT(
          (place.offset_elements - end[place.region]) * static_cast<int64_t>(SizeOf(spec.dtype)),
          kAlignmentBytes);
      end[place.region] = place.offset_elements + spec.elements();
    }
    for (size_t i = 0; i < end.size(); ++i) {
      ASSERT_EQ(layout.regions()[i].elements, AlignedElements(end[i], layout.regions()[i].dtype));
    }
  }
}

TEST(MemoryLayout, GroupAdded_LeavesThePlacesOfTheOthers) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const ParameterSpace before = RandomSpace(seed);
    std::vector<GroupSpec> groups = before.groups();
    groups.push_back({{{"added", {7}}}});
    const MemoryLayout old(before);
    const MemoryLayout now((ParameterSpace(groups)));
    ASSERT_EQ(now.regions().size(), old.regions().size() + 1) << "seed " << seed;
    for (int i = 0; i < before.parameter_count(); ++i) {
      ASSERT_EQ(now.place(i).region, old.place(i).region) << "seed " << seed;
      ASSERT_EQ(now.place(i).offset_elements, old.place(i).offset_elements) << "seed " << seed;
    }
  }
}

TEST(MemoryLayout, Digest_AnotherPlaceOrRegion_Differs) {
  const auto digest = [](std::vector<GroupSpec> groups) {
    return MemoryLayout(ParameterSpace(std::move(groups))).Digest();
  };
  const uint64_t first = digest({{{{"a", {10}}, {"b", {20}}}}});
  EXPECT_EQ(first, digest({{{{"a", {10}}, {"b", {20}}}}}));
  EXPECT_EQ(first, digest({{{{"x", {10}}, {"y", {4, 5}}}}}));  // names are not where things lie
  EXPECT_NE(first, digest({{{{"a", {20}}, {"b", {10}}}}}));
  EXPECT_NE(first, digest({{{{"a", {10}}}}, {{{"b", {20}}}}}));
  EXPECT_NE(first, digest({{{{"a", {10}, DType::kFloat16}, {"b", {20}}}}}));
  EXPECT_NE(first, digest({{{{"a", {10}}, {"b", {20}, DType::kFloat32, "cuda:0"}}}}));
}

}  // namespace
}  // namespace optshard
