#include "common/checked_math.h"

#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace optshard {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

TEST(CheckedAdd_WithinTheType_IsTheSum, AtBothEnds) {
  EXPECT_EQ(CheckedAdd(kMax - 1, int64_t{1}), kMax);
  EXPECT_EQ(CheckedAdd(kMin + 1, int64_t{-1}), kMin);
  EXPECT_EQ(CheckedAdd(~uint64_t{0} - 1, uint64_t{1}), ~uint64_t{0});
}

TEST(CheckedAdd_BeyondTheType_IsNothing, AtBothEnds) {
  EXPECT_EQ(CheckedAdd(kMax, int64_t{1}), absl::nullopt);
  EXPECT_EQ(CheckedAdd(kMin, int64_t{-1}), absl::nullopt);
  EXPECT_EQ(CheckedAdd(~uint64_t{0}, uint64_t{1}), absl::nullopt);
}

TEST(SaturatingMath_BeyondTheType_IsTheLargestNumber, OfTheType) {
  EXPECT_EQ(SaturatingAdd(kMax - 1, int64_t{1}), kMax);
  EXPECT_EQ(SaturatingAdd(kMax, int64_t{1}), kMax);
  EXPECT_EQ(SaturatingMultiply(int64_t{1} << 31, int64_t{1} << 31), int64_t{1} << 62);
  EXPECT_EQ(SaturatingMultiply(int64_t{1} << 32, int64_t{1} << 31), kMax);
  EXPECT_EQ(SaturatingMultiply(kMax, int64_t{0}), 0);
}

}  // namespace
}  // namespace optshard
