#include "common/simd/norms.h"

#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

#include "common/dtype_conversion.h"
#include "gtest/gtest.h"
#include "tests/testing/simd_targets.h"

namespace optshard::testing {
namespace {

// As norms.h has it, one by one.
template <typename T>
double OneByOne(const std::vector<T>& values) {
  double sum = 0;
  for (size_t begin = 0; begin < values.size(); begin += kNormBlock) {
    double sums[16] = {};
    for (size_t i = begin; i < values.size() && i < begin + kNormBlock; ++i) {
      sums[i % 16] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    for (int distance = 8; distance > 0; distance /= 2) {
      for (int k = 0; k < distance; ++k) sums[k] += sums[k + distance];
    }
    sum += sums[0];
  }
  return sum;
}

template <typename T>
std::vector<T> Values(size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(std::sin(0.7 * double(i)) * 1e3);
  return values;
}

TEST(SumOfSquares, AnyLengthAndInstructionSet_SameBits) {
  for (const int64_t target : AllTargets()) {
    ChooseTarget(target);
    for (const size_t count : {0, 1, 15, 16, 17, 1023, 1024, 1025, 5000}) {
      const std::vector<float> floats = Values<float>(count);
      const std::vector<double> doubles = Values<double>(count);
      const auto elements = static_cast<int64_t>(count);
      EXPECT_EQ(SumOfSquares(floats.data(), elements), OneByOne(floats)) << count;
      EXPECT_EQ(SumOfSquares(doubles.data(), elements), OneByOne(doubles)) << count;
      std::vector<uint16_t> halves(count);
      std::vector<float> rounded(count);
      Narrow(DType::kBFloat16, floats.data(), elements, halves.data());
      Widen(DType::kBFloat16, halves.data(), elements, rounded.data());
      EXPECT_EQ(SumOfSquares(ConstBuffer(halves.data(), DType::kBFloat16), elements),
                OneByOne(rounded))
          << count;
    }
  }
  ChooseTarget(0);
}

// Parts that begin with a block go on from the sum of those before.
TEST(SumOfSquares, OfParts_IsThatOfTheWhole) {
  const std::vector<float> values = Values<float>(5000);
  double sum = 0;
  constexpr int64_t kEnds[] = {0, 2048, 3072, 5000};
  for (size_t part = 1; part < std::size(kEnds); ++part) {
    const int64_t begin = kEnds[part - 1];
    sum = SumOfSquares(values.data() + begin, kEnds[part] - begin, sum);
  }
  EXPECT_EQ(sum, SumOfSquares(values.data(), 5000));
}

template <typename T>
void ExpectRowAndColumnSums(const MatrixExtent& extent) {
  const auto values = Values<T>(extent.rows * extent.columns);
  std::vector<double> rows(extent.rows, -1.0);
  const int64_t matrices = (extent.rows + extent.matrix_rows - 1) / extent.matrix_rows;
  std::vector<double> columns(matrices * extent.columns, 0.5);
  std::vector<double> expected = columns;
  SumSquaresByRowAndColumn(values.data(), extent, rows.data(), columns.data());
  for (int64_t r = 0; r < extent.rows; ++r) {
    const T* const row = values.data() + r * extent.columns;
    EXPECT_EQ(rows[r], OneByOne(std::vector<T>(row, row + extent.columns))) << r;
    for (int64_t c = 0; c < extent.columns; ++c) {
      expected[r / extent.matrix_rows * extent.columns + c] +=
          static_cast<double>(row[c]) * static_cast<double>(row[c]);
    }
  }
  EXPECT_EQ(columns, expected);
}

TEST(SumSquaresByRowAndColumn, AnyExtentAndInstructionSet_SameBits) {
  const MatrixExtent extents[] = {{0, 5, 3},  {1, 1, 1},    {6, 1, 2},   {9, 3, 3},
                                  {7, 16, 2}, {40, 17, 40}, {5, 33, 10}, {3, 2500, 3}};
  for (const int64_t target : AllTargets()) {
    ChooseTarget(target);
    for (const MatrixExtent& extent : extents) {
      ExpectRowAndColumnSums<float>(extent);
      ExpectRowAndColumnSums<double>(extent);
    }
  }
  ChooseTarget(0);
}

TEST(SumOfSquares, OfWhatIsNotFinite_IsNot) {
  std::vector<float> values(40, 1.0f);
  values[33] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(SumOfSquares(values.data(), 40)));
  values[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(SumOfSquares(values.data(), 40)));
}

}  // namespace
}  // namespace optshard::testing
