#include "server/shard/inspection/slot_statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace optshard {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<double> RandomValues(int64_t elements) {
  std::mt19937 generator(7);
  std::normal_distribution<double> distribution(0.25, 3);
  std::vector<double> values(elements);
  for (double& value : values) value = distribution(generator);
  return values;
}

TEST(SlotStatistics, ManyValues_AreThoseOfAPlainLoop) {
  std::vector<double> values = RandomValues(5000);
  values[17] = values[1024] = 0;
  values[3000] = -0.0;
  double sum = 0;
  double squares = 0;
  double least = values[0];
  double most = values[0];
  for (const double value : values) {
    sum += value;
    squares += value * value;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  SlotStatistics statistics;
  statistics.Add(absl::MakeSpan(values));
  EXPECT_EQ(statistics.elements, 5000);
  EXPECT_EQ(statistics.zeros, 3);
  EXPECT_EQ(statistics.non_finite, 0);
  EXPECT_EQ(statistics.min, least);
  EXPECT_EQ(statistics.max, most);
  EXPECT_NEAR(statistics.mean(), sum / 5000, 1e-12);
  EXPECT_NEAR(statistics.norm(), std::sqrt(squares), 1e-9);
}

// 1 + 2^-53 is 1 in double, and 2^-53 + 2^-53 is not lost: the order is seen in the bits.
TEST(SlotStatistics, Sums_AreOfBlocksInOrder) {
  const double tiny = std::ldexp(1, -53);
  std::vector<double> values(2048, 0);
  values[0] = 1;
  values[1024] = values[1025] = tiny;
  SlotStatistics statistics;
  statistics.Add(absl::MakeSpan(values));
  EXPECT_EQ(statistics.sum, 1 + 2 * tiny);  // the second block's sum is 2^-52
  values[1024] = values[1025] = 0;
  values[0] = 1;
  values[16] = values[32] = tiny;  // into the same partial sum, one after the other
  SlotStatistics one_block;
  one_block.Add(absl::MakeSpan(values));
  EXPECT_EQ(one_block.sum, 1);
}

TEST(SlotStatistics, PartsOfWholeBlocks_HaveTheBitsOfAllAtOnce) {
  std::vector<double> values = RandomValues(10 * 1024 + 77);
  SlotStatistics whole;
  std::vector<double> copy = values;
  whole.Add(absl::MakeSpan(copy));
  SlotStatistics parts;
  parts.Add(absl::MakeSpan(values).subspan(0, 3072));
  parts.Add(absl::MakeSpan(values).subspan(3072, 1024));
  parts.Add(absl::MakeSpan(values).subspan(4096));
  EXPECT_EQ(parts.sum, whole.sum);
  EXPECT_EQ(parts.sum_of_squares, whole.sum_of_squares);
  EXPECT_EQ(parts.min, whole.min);
  EXPECT_EQ(parts.max, whole.max);
}

TEST(SlotStatistics, ValuesThatAreNotFinite_AreOnlyCounted) {
  std::vector<double> values = {kNan, 3, kInfinity, -4, -kInfinity, 0};
  SlotStatistics statistics;
  statistics.Add(absl::MakeSpan(values));
  EXPECT_EQ(statistics.elements, 6);
  EXPECT_EQ(statistics.non_finite, 3);
  EXPECT_EQ(statistics.zeros, 1);
  EXPECT_EQ(statistics.min, -4);
  EXPECT_EQ(statistics.max, 3);
  EXPECT_EQ(statistics.mean(), -1.0 / 3);
  EXPECT_EQ(statistics.norm(), 5);
}

TEST(SlotStatistics, NoFiniteValue_AreZero) {
  std::vector<double> values = {kNan, kNan};
  SlotStatistics statistics;
  EXPECT_EQ(statistics.mean(), 0);
  statistics.Add(absl::MakeSpan(values));
  EXPECT_EQ(statistics.mean(), 0);
  EXPECT_EQ(statistics.min, 0);
  EXPECT_EQ(statistics.norm(), 0);
}

TEST(SlotStatistics, PartsOfOwners_AreAdded) {
  std::vector<double> first = {5, 7};
  std::vector<double> second = {kNan, kNan};
  std::vector<double> third = {1, 6};
  SlotStatistics whole;
  for (std::vector<double>* part : {&first, &second, &third}) {
    SlotStatistics of_part;
    of_part.Add(absl::MakeSpan(*part));
    whole.Add(of_part);
  }
  EXPECT_EQ(whole.elements, 6);
  EXPECT_EQ(whole.non_finite, 2);
  EXPECT_EQ(whole.min, 1);
  EXPECT_EQ(whole.max, 7);
  EXPECT_EQ(whole.sum, 19);
  EXPECT_EQ(whole.sum_of_squares, 25 + 49 + 1 + 36);
}

}  // namespace
}  // namespace optshard
