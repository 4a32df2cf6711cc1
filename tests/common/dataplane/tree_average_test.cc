#include "common/dataplane/tree_average.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace optshard {
namespace {

TEST(TreeAverage, TwoGroups_SumsGroupsFirst) {
  // (1e8 + 1) + (-1e8 + 1) is 0 in fp32 when 1 is lost beside 1e8; in rank order it is 1.
  const float values[4] = {1e8f, 1.0f, -1e8f, 1.0f};
  const void* contributions[4] = {&values[0], &values[1], &values[2], &values[3]};
  float result = -1;
  TreeAverage(ReductionTree{{{0, 1}, {2, 3}}}, DType::kFloat32, contributions, 1, &result);
  EXPECT_EQ(result, 0.0f);
  TreeAverage(ReductionTree{{{0, 1, 2, 3}}}, DType::kFloat32, contributions, 1, &result);
  EXPECT_EQ(result, 0.25f);
}

TEST(TreeAverage, ThreeRanks_DividesOnceInIeee) {
  const float values[3] = {1.0f, 1.0f, 5.0f};
  const void* contributions[3] = {&values[0], &values[1], &values[2]};
  float result = 0;
  TreeAverage(ReductionTree{{{0, 1, 2}}}, DType::kFloat32, contributions, 1, &result);
  EXPECT_EQ(result, 7.0f / 3.0f);
}

TEST(TreeAverage, OneRank_KeepsTheBits) {
  const std::vector<float> values = {-0.0f, std::numeric_limits<float>::denorm_min(),
                                     std::numeric_limits<float>::max()};
  const void* contributions[1] = {values.data()};
  std::vector<float> result(3, 1.0f);
  TreeAverage(ReductionTree{{{0}}}, DType::kFloat32, contributions, 3, result.data());
  EXPECT_EQ(result, values);
  EXPECT_TRUE(std::signbit(result[0]));
}

TEST(TreeAverage, ResultIsAContribution_ReadsBeforeItWrites) {
  std::vector<float> first(3000), second(3000);
  for (int i = 0; i < 3000; ++i) {
    first[i] = static_cast<float>(i);
    second[i] = static_cast<float>(3 * i);
  }
  const void* contributions[2] = {first.data(), second.data()};
  TreeAverage(ReductionTree{{{0}, {1}}}, DType::kFloat32, contributions, 3000, second.data());
  for (int i = 0; i < 3000; ++i) EXPECT_EQ(second[i], 2.0f * i);
}

}  // namespace
}  // namespace optshard
