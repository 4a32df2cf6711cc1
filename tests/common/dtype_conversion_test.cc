// The conversions give PyTorch's bits, by every instruction set of this CPU.
#include "common/dtype_conversion.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/half.h"
#include "gtest/gtest.h"
#include "tests/testing/simd_targets.h"

namespace optshard::testing {
namespace {

constexpr uint32_t kSeed = 20261122;

// PyTorch's types, as the oracle.
template <typename Half>
struct Torch;
template <>
struct Torch<c10::BFloat16> {
  static constexpr DType kDType = DType::kBFloat16;
  static uint16_t Bits(float value) { return c10::BFloat16(value).x; }
  static float Value(uint16_t bits) {
    return static_cast<float>(c10::BFloat16(bits, c10::BFloat16::from_bits()));
  }
};
template <>
struct Torch<c10::Half> {
  static constexpr DType kDType = DType::kFloat16;
  static uint16_t Bits(float value) { return c10::Half(value).x; }
  static float Value(uint16_t bits) {
    return static_cast<float>(c10::Half(bits, c10::Half::from_bits()));
  }
};

// Any NaN for any other: which bits of a NaN PyTorch keeps depends on its build.
bool SameHalf(DType dtype, uint16_t a, uint16_t b) {
  const unsigned infinity = dtype == DType::kBFloat16 ? 0x7f80 : 0x7c00;
  return a == b || ((a & 0x7fffu) > infinity && (b & 0x7fffu) > infinity);
}

bool SameFloat(float a, float b) {
  return BitsOf(a) == BitsOf(b) || (std::isnan(a) && std::isnan(b));
}

template <typename Half>
class DTypeConversionTest : public ::testing::Test {
 protected:
  ~DTypeConversionTest() override { ChooseTarget(0); }
};

using Halves = ::testing::Types<c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(DTypeConversionTest, Halves, );

TYPED_TEST(DTypeConversionTest, Widen_EveryCode_IsPyTorchsValue) {
  constexpr DType kDType = Torch<TypeParam>::kDType;
  std::vector<uint16_t> codes(1 << 16);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
  for (const int64_t target : AllTargets()) {
    ChooseTarget(target);
    std::vector<float> values(codes.size());
    Widen(kDType, codes.data(), static_cast<int64_t>(codes.size()), values.data());
    for (size_t i = 0; i < codes.size(); ++i) {
      ASSERT_TRUE(SameFloat(values[i], Torch<TypeParam>::Value(codes[i])))
          << TargetNameOf(target) << absl::StrFormat(": 0x%04x gives %a", i, values[i]);
    }
  }
  ChooseTarget(0);  // of wide vectors, so that one element is not a vector
  for (const uint16_t code : codes) {
    float value = 0;
    Widen(kDType, &code, 1, &value);
    ASSERT_TRUE(SameFloat(value, Torch<TypeParam>::Value(code)))
        << absl::StrFormat("alone: 0x%04x gives %a", code, value);
  }
}

// Every value that a code has, what lies halfway to the next one and the floats beside both, and
// random bits: the roundings that can go wrong.
template <typename Half>
std::vector<float> AwkwardFloats() {
  std::vector<float> values;
  const auto add = [&values](float value) {
    const float outwards = std::copysign(HUGE_VALF, value);
    values.insert(values.end(),
                  {value, std::nextafter(value, 0.0f), std::nextafter(value, outwards)});
  };
  for (int code = 0; code < 1 << 16; ++code) {
    const float value = Torch<Half>::Value(static_cast<uint16_t>(code));
    const float next = Torch<Half>::Value(static_cast<uint16_t>(code + 1));
    add(value);
    add(value + (next - value) / 2);
  }
  std::mt19937 random(kSeed);
  for (int i = 0; i < 100000; ++i) values.push_back(FloatOf(static_cast<uint32_t>(random())));
  return values;
}

TYPED_TEST(DTypeConversionTest, Narrow_AwkwardFloats_RoundAsPyTorchDoes) {
  constexpr DType kDType = Torch<TypeParam>::kDType;
  const std::vector<float> values = AwkwardFloats<TypeParam>();
  for (const int64_t target : AllTargets()) {
    ChooseTarget(target);
    std::vector<uint16_t> codes(values.size());
    Narrow(kDType, values.data(), static_cast<int64_t>(values.size()), codes.data());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(SameHalf(kDType, codes[i], Torch<TypeParam>::Bits(values[i])))
          << TargetNameOf(target) << absl::StrFormat(": %a gives 0x%04x", values[i], codes[i]);
    }
  }
  ChooseTarget(0);
  for (const float value : values) {
    uint16_t code = 0;
    Narrow(kDType, &value, 1, &code);
    ASSERT_TRUE(SameHalf(kDType, code, Torch<TypeParam>::Bits(value)))
        << absl::StrFormat("alone: %a gives 0x%04x", value, code);
  }
}

// Element by element and by vectors: the same bits, also of NaN.
TYPED_TEST(DTypeConversionTest, AnyLengthAndTarget_SameBitsAsOneByOne) {
  constexpr DType kDType = Torch<TypeParam>::kDType;
  std::vector<float> values = AwkwardFloats<TypeParam>();
  values.insert(values.begin(), {NAN, -NAN, FloatOf(0x7f800001), FloatOf(0xff800001)});
  for (const int64_t target : AllTargets()) {
    ChooseTarget(target);
    for (int64_t elements = 0; elements <= 67; ++elements) {
      std::vector<uint16_t> codes(elements + 1, 0x1234), single(elements + 1, 0x1234);
      std::vector<float> widened(elements + 1, 7), one_by_one(elements + 1, 7);
      Narrow(kDType, values.data(), elements, codes.data());
      Widen(kDType, codes.data(), elements, widened.data());
      for (int64_t i = 0; i < elements; ++i) {
        Narrow(kDType, &values[i], 1, &single[i]);
        Widen(kDType, &single[i], 1, &one_by_one[i]);
      }
      ASSERT_EQ(codes, single) << TargetNameOf(target) << ", " << elements;
      for (int64_t i = 0; i <= elements; ++i) {
        ASSERT_EQ(BitsOf(widened[i]), BitsOf(one_by_one[i])) << TargetNameOf(target);
      }
    }
  }
}

TEST(Half, NarrowOfNan_IsPyTorchsNan) {
  EXPECT_EQ(ToBFloat16(NAN), 0x7fc0);
  EXPECT_EQ(ToBFloat16(-NAN), 0x7fc0);
  EXPECT_EQ(ToFloat16(NAN), 0x7e00);
  EXPECT_EQ(ToFloat16(-NAN), 0xfe00);
}

}  // namespace
}  // namespace optshard::testing
