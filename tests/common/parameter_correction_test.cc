// Corrections against their definition, by every instruction set of this CPU.
#include "common/parameter_correction.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "common/half.h"
#include "gtest/gtest.h"
#include "tests/testing/simd_targets.h"

namespace optshard::testing {
namespace {

constexpr uint32_t kSeed = 20261122;

class ParameterCorrectionTest : public ::testing::TestWithParam<DType> {
 protected:
  ~ParameterCorrectionTest() override { ChooseTarget(0); }

  static bool IsBFloat16() { return GetParam() == DType::kBFloat16; }
  static uint16_t Rounded(float value) {
    return IsBFloat16() ? ToBFloat16(value) : ToFloat16(value);
  }
  static float Widened(uint16_t half) {
    return IsBFloat16() ? FromBFloat16(half) : FromFloat16(half);
  }
  // To the next number further from 0; of denormals to the next one of those.
  static double HalfDistance(float parameter) {
    const int smallest = IsBFloat16() ? -126 : -14;
    const int exponent = parameter == 0 ? smallest : std::max(std::ilogb(parameter), smallest);
    return std::ldexp(1, exponent - (IsBFloat16() ? 8 : 11));
  }

  // Of the type's whole range, its denormals and what overflows included.
  static std::vector<float> SomeValues(int64_t count) {
    std::mt19937 random(kSeed);
    std::uniform_real_distribution<double> exponent(IsBFloat16() ? -40 : -9, IsBFloat16() ? 38 : 4);
    std::vector<float> values = {0.0f, -0.0f, HUGE_VALF, -HUGE_VALF, std::nanf(""), 65519.0f, 1.0f};
    while (static_cast<int64_t>(values.size()) < count) {
      const auto value = static_cast<float>(std::pow(10, exponent(random)));
      values.push_back(random() % 2 == 0 ? value : -value);
    }
    values.resize(count);
    return values;
  }
};

TEST_P(ParameterCorrectionTest, Corrections_AreThoseOfTheirDefinition) {
  const std::vector<float> values = SomeValues(4000);
  std::vector<uint16_t> parameters(values.size());
  std::transform(values.begin(), values.end(), parameters.begin(), Rounded);
  const auto count = static_cast<int64_t>(values.size());
  for (const int64_t target : AllTargets()) {
    ChooseTarget(target);
    std::vector<int8_t> corrections(values.size());
    CorrectionsOf(GetParam(), values.data(), parameters.data(), count, corrections.data());
    std::vector<float> corrected(values.size());
    Corrected(GetParam(), parameters.data(), corrections.data(), count, corrected.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const float parameter = Widened(parameters[i]);
      if (!std::isfinite(parameter)) {
        ASSERT_EQ(corrections[i], 0) << values[i];
        ASSERT_TRUE(BitsOf(corrected[i]) == BitsOf(parameter) || std::isnan(parameter));
        continue;
      }
      const double half = HalfDistance(parameter);
      const double share = (static_cast<double>(values[i]) - parameter) / half;
      ASSERT_EQ(corrections[i], std::nearbyint(share * 127)) << TargetNameOf(target) << values[i];
      const float part = static_cast<float>(corrections[i]) / 127;
      ASSERT_EQ(corrected[i], parameter + part * static_cast<float>(half)) << values[i];
      ASSERT_NEAR(corrected[i], values[i], half / 253) << values[i];
    }
  }
}

TEST_P(ParameterCorrectionTest, ShortArrays_AreDoneToTheirEnd) {
  const std::vector<float> values = SomeValues(200);
  std::vector<uint16_t> parameters(values.size());
  std::transform(values.begin(), values.end(), parameters.begin(), Rounded);
  std::vector<int8_t> expected(values.size());
  CorrectionsOf(GetParam(), values.data(), parameters.data(), 200, expected.data());
  for (int64_t count = 0; count < 70; ++count) {
    std::vector<int8_t> corrections(count + 1, 99);
    CorrectionsOf(GetParam(), &values[50], &parameters[50], count, corrections.data());
    EXPECT_TRUE(std::equal(corrections.begin(), corrections.end() - 1, &expected[50])) << count;
    EXPECT_EQ(corrections.back(), 99) << count;
    std::vector<float> corrected(count + 1, 99.0f);
    Corrected(GetParam(), &parameters[50], corrections.data(), count, corrected.data());
    EXPECT_EQ(corrected.back(), 99.0f) << count;
    for (int64_t i = 0; i < count; ++i) {
      const float value = values[50 + i];
      if (!std::isfinite(Widened(Rounded(value)))) continue;
      ASSERT_NEAR(corrected[i], value, HalfDistance(Widened(Rounded(value))) / 253) << count;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HalfTypes, ParameterCorrectionTest,
                         ::testing::Values(DType::kBFloat16, DType::kFloat16));

}  // namespace
}  // namespace optshard::testing
