// The companded codes against their definition, step by step in float, by every instruction set of
// this CPU.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/block_code.h"
#include "common/half.h"
#include "gtest/gtest.h"
#include "tests/common/coded_values.h"
#include "tests/testing/simd_targets.h"

namespace optshard::testing {
namespace {

using CompandedCodeTest = EveryTargetTest;

// The code of a value in a block of such a scale, as the format defines it, step by step in float.
int CompandedCodeOf(BlockCode code, float value, float scale) {
  const float place = code == BlockCode::kCompandedAverage
                          ? value / (scale + std::abs(value)) * 254
                          : std::sqrt(std::max(value, 0.0f)) * (255 / scale);
  const float most = code == BlockCode::kCompandedAverage ? 127 : 255;
  return static_cast<int>(std::nearbyint(std::min(std::max(place, -most), most)));
}

// Values next to the middle of two codes, where the last bit decides, and far from it.
std::vector<float> ValuesAroundMiddles(BlockCode code, float scale) {
  const bool is_average = code == BlockCode::kCompandedAverage;
  std::vector<float> values;
  for (int k = 0; k < (is_average ? 127 : 255); ++k) {
    const double place = k + 0.5;
    const double middle =
        is_average ? place / (254 - place) * scale : std::pow(place / 255 * scale, 2);
    float value = static_cast<float>(middle);
    for (int step = 0; step < 6; ++step) value = std::nextafter(value, 0.0f);
    for (int step = 0; step < 12; ++step, value = std::nextafter(value, HUGE_VALF)) {
      values.push_back(is_average && step % 2 == 1 ? -value : value);
    }
    // As far as estimates are in doubt, and a little further.
    for (const double share : {-0x1p-9, -0x1p-11, -0x1p-13, 0x1p-13, 0x1p-11, 0x1p-9}) {
      values.push_back(static_cast<float>(middle * (1 + share / (k + 1))));
    }
  }
  return values;
}

TEST_F(CompandedCodeTest, CodesAroundMiddles_AreThoseOfTheDefinition) {
  // Scales down to float16's smallest ones, and up to its largest.
  for (const float scale : {1.0f, 0x1.55p-3f, 0x1.8p-14f, 0x1p-24f, 0x1.8p-23f, 65504.0f}) {
    for (const BlockCode code : {BlockCode::kCompandedAverage, BlockCode::kCompandedSquare}) {
      const float largest = code == BlockCode::kCompandedAverage ? scale : scale * scale;
      std::vector<float> values;
      for (const float value : ValuesAroundMiddles(code, scale)) {
        if (values.size() % 32 == 31) values.push_back(largest);
        values.push_back(std::min(value, largest));
      }
      values.push_back(largest);
      for (const int64_t target : AllTargets()) {
        ChooseTarget(target);
        const Coded coded = Encoded(code, values);
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(coded.scale(static_cast<int64_t>(i / 32)), scale);
          ASSERT_EQ(coded.codes[i], static_cast<uint8_t>(CompandedCodeOf(code, values[i], scale)))
              << values[i] << " of scale " << scale << ", " << TargetNameOf(target);
        }
      }
    }
  }
}

// The estimates' errors depend on the bits of the value, and their bound is the CPU's promise.
TEST_F(CompandedCodeTest, CodesOfManyValues_AreThoseOfTheDefinition) {
  for (const BlockCode code : {BlockCode::kCompandedAverage, BlockCode::kCompandedSquare}) {
    const float scale = 0x1.55p-3f;
    const float largest = code == BlockCode::kCompandedAverage ? scale : scale * scale;
    std::vector<float> values;
    for (uint32_t bits = BitsOf(largest / 512); bits < BitsOf(largest); bits += 211) {
      if (values.size() % 32 == 31) values.push_back(largest);
      values.push_back(FloatOf(bits));
    }
    values.push_back(largest);
    for (const int64_t target : AllTargets()) {
      ChooseTarget(target);
      const Coded coded = Encoded(code, values);
      for (size_t i = 0; i < values.size(); ++i) {
        // Of the last block the scale may be another: it is not whole.
        const float of_block = coded.scale(static_cast<int64_t>(i / 32));
        ASSERT_EQ(coded.codes[i], static_cast<uint8_t>(CompandedCodeOf(code, values[i], of_block)))
            << values[i] << " of scale " << of_block << ", " << TargetNameOf(target);
      }
    }
  }
}

TEST_F(CompandedCodeTest, CodesBesideAnyLargestValue_AreThoseOfTheDefinition) {
  for (const BlockCode code : {BlockCode::kCompandedAverage, BlockCode::kCompandedSquare}) {
    // One block beside the other: of zeros, denormals, the largest numbers, and all between.
    std::vector<float> values;
    for (int exponent = -150; exponent < 129; exponent += 3) {
      std::vector<float> block =
          RandomValues(code, 32, std::ldexp(0.99, exponent), static_cast<uint32_t>(exponent + 200));
      block[exponent % 2 == 0 ? 0 : 31] = static_cast<float>(std::ldexp(0.99, exponent));
      values.insert(values.end(), block.begin(), block.end());
    }
    for (const int64_t target : AllTargets()) {
      ChooseTarget(target);
      const Coded coded = Encoded(code, values);
      for (size_t i = 0; i < values.size(); ++i) {
        const int64_t block = static_cast<int64_t>(i / 32);
        const bool is_zero = coded.scale(block) == 0;
        ASSERT_EQ(coded.codes[i],
                  static_cast<uint8_t>(
                      is_zero ? 0 : CompandedCodeOf(code, values[i], coded.scale(block))))
            << values[i] << " of scale " << coded.scale(block) << ", " << TargetNameOf(target);
      }
    }
  }
}

TEST(CompandedCode, ScalesAreKeptInFloat16_WhichTheCodesAllowFor) {
  // Below what float16 resolves, and above its largest number.
  for (const float size : {1e-9f, 3.1e-8f, 1e-6f, 0.1f, 6e4f}) {
    const std::vector<float> values = {size, -size / 3};
    const std::vector<float> decoded = Decoded(Encoded(BlockCode::kCompandedAverage, values));
    // A code is worth 1/254 of the scale near 0, and twice that at the scale.
    const float code = std::max(size, 0x1p-24f) / 120;
    EXPECT_NEAR(decoded[0], values[0], code) << size;
    EXPECT_NEAR(decoded[1], values[1], code) << size;
  }
  EXPECT_EQ(Decoded(Encoded(BlockCode::kCompandedAverage, {1e30f, -2.0f}))[0], 65504.0f);
  EXPECT_EQ(Decoded(Encoded(BlockCode::kCompandedSquare, {1e30f, 2.0f}))[0], 65504.0f * 65504.0f);
}

TEST(CompandedCode, NegativeSquare_CountsAsZero) {
  const std::vector<float> decoded = Decoded(Encoded(BlockCode::kCompandedSquare, {-1.0f, 4.0f}));
  EXPECT_EQ(decoded[0], 0.0f);
  EXPECT_EQ(decoded[1], 4.0f);
  EXPECT_EQ(Decoded(Encoded(BlockCode::kDynamicUnsigned, {-1.0f, 4.0f}))[0], 0.0f);
}

}  // namespace
}  // namespace optshard::testing
