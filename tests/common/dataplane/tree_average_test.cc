#include "common/dataplane/tree_average.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/dataplane/order_sensitive.h"

namespace optshard {
namespace {

TEST(AverageOfGroups, TwoGroups_SumsGroupsFirst) {
  // (1e8 + 1) + (-1e8 + 1) is 0 in fp32 when 1 is lost beside 1e8; in rank order it is 1.
  const float values[4] = {1e8f, 1.0f, -1e8f, 1.0f};
  const void* contributions[4] = {&values[0], &values[1], &values[2], &values[3]};
  float result = -1;
  AverageOfGroups({2, 2}, DType::kFloat32, contributions, 0, 1, &result);
  EXPECT_EQ(result, 0.0f);
  AverageOfGroups({4}, DType::kFloat32, contributions, 0, 1, &result);
  EXPECT_EQ(result, 0.25f);
}

TEST(AverageOfGroups, ThreeRanks_DividesOnceInIeee) {
  const float values[3] = {1.0f, 1.0f, 5.0f};
  const void* contributions[3] = {&values[0], &values[1], &values[2]};
  float result = 0;
  AverageOfGroups({3}, DType::kFloat32, contributions, 0, 1, &result);
  EXPECT_EQ(result, 7.0f / 3.0f);
}

TEST(AverageOfGroups, OneRank_KeepsTheBits) {
  const std::vector<float> values = {-0.0f, std::numeric_limits<float>::denorm_min(),
                                     std::numeric_limits<float>::max()};
  const void* contributions[1] = {values.data()};
  std::vector<float> result(3, 1.0f);
  AverageOfGroups({1}, DType::kFloat32, contributions, 0, 3, result.data());
  EXPECT_EQ(result, values);
  EXPECT_TRUE(std::signbit(result[0]));
}

TEST(AverageOfGroups, ResultIsAContribution_ReadsBeforeItWrites) {
  std::vector<float> first(3000), second(3000);
  for (int i = 0; i < 3000; ++i) {
    first[i] = static_cast<float>(i);
    second[i] = static_cast<float>(3 * i);
  }
  const void* contributions[2] = {first.data(), second.data()};
  AverageOfGroups({1, 1}, DType::kFloat32, contributions, 0, 3000, second.data());
  for (int i = 0; i < 3000; ++i) EXPECT_EQ(second[i], 2.0f * i);
}

// Sums that are made in two stages, group by group first, have the bits of one.
TEST(ReduceGroups, SumsOfTheGroups_Summed_GiveTheBitsOfTheTree) {
  constexpr int64_t kElements = 1003;
  std::vector<std::vector<float>> values;
  for (Rank rank = 0; rank < 5; ++rank) {
    values.push_back(OrderSensitiveValues<float>(rank, kElements));
  }
  values[3].assign(kElements, -0.0f);
  const std::vector<const void*> all = {values[0].data(), values[1].data(), values[2].data(),
                                        nullptr, values[4].data()};
  std::vector<float> expected(kElements), first(kElements), second(kElements), staged(kElements);
  ReduceGroups({3, 2}, 5, DType::kFloat32, all, 0, kElements, expected.data());
  ReduceGroups({3}, 1, DType::kFloat32, {all[0], all[1], all[2]}, 0, kElements, first.data());
  ReduceGroups({2}, 1, DType::kFloat32, {all[3], all[4]}, 0, kElements, second.data());
  ReduceGroups({1, 1}, 5, DType::kFloat32, {first.data(), second.data()}, 0, kElements,
               staged.data());
  EXPECT_TRUE(SameBits(staged, expected));
}

TEST(ReduceGroups, OneAndTwoLeaves_AreDividedByTheDivisor) {
  const float values[2] = {10.0f, -4.0f};
  for (const int divisor : {1, 2, 3, 8}) {
    float result = 0;
    ReduceGroups({1}, divisor, DType::kFloat32, {&values[0]}, 0, 1, &result);
    EXPECT_EQ(result, 10.0f / static_cast<float>(divisor));
    ReduceGroups({1, 1}, divisor, DType::kFloat32, {&values[0], &values[1]}, 0, 1, &result);
    EXPECT_EQ(result, 6.0f / static_cast<float>(divisor));
  }
}

}  // namespace
}  // namespace optshard
