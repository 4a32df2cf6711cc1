#include "common/block_recode.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "common/block_code.h"
#include "gtest/gtest.h"

namespace optshard {
namespace {

struct Coded {
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;

  Coded(BlockCode code, int64_t elements)
      : codes(CodeBytes(code, elements)), scales(ScaleBytes(code, elements)) {}
  CodedArray array(BlockCode code) { return {code, codes.data(), scales.data()}; }
};

// Of any magnitude and sign.
std::vector<float> Values(std::mt19937& random, int64_t elements, bool is_signed) {
  std::vector<float> values;
  const int exponent = static_cast<int>(random() % 200) - 120;
  for (int64_t i = 0; i < elements; ++i) {
    const float size = std::ldexp(static_cast<float>(random() % 100000) / 100000.0f,
                                  exponent - static_cast<int>(random() % 24));
    values.push_back(is_signed && random() % 2 == 0 ? -size : size);
  }
  return values;
}

TEST(BlockRecodeTest, Recode_WhatWasDecoded_DecodesToTheSameBits) {
  std::mt19937 random(7);
  for (const BlockCode code : {BlockCode::kDynamicSigned, BlockCode::kDynamicUnsigned,
                               BlockCode::kCompandedAverage, BlockCode::kCompandedSquare}) {
    for (int round = 0; round < 200; ++round) {
      const int64_t elements = round % 10 == 0 ? 1000 : 256;
      const bool is_signed =
          code == BlockCode::kDynamicSigned || code == BlockCode::kCompandedAverage;
      std::vector<float> values = Values(random, elements, is_signed);
      if (round == 5) values[3] = std::numeric_limits<float>::quiet_NaN();
      Coded first(code, elements);
      Encode(values.data(), elements, first.array(code));
      Decode(first.array(code), elements, values.data());
      Coded again(code, elements);
      Recode(values.data(), elements, again.array(code));
      std::vector<float> decoded(elements);
      Decode(again.array(code), elements, decoded.data());
      ASSERT_EQ(std::memcmp(decoded.data(), values.data(), elements * sizeof(float)), 0)
          << "code " << static_cast<int>(code) << ", round " << round;
    }
  }
}

// Where the scale is larger than all that is decoded.
TEST(BlockRecodeTest, Recode_LargestIsNegative_FindsTheScale) {
  std::vector<float> values(256, 0.25f);
  values[7] = -3;
  Coded first(BlockCode::kDynamicSigned, 256);
  Encode(values.data(), 256, first.array(BlockCode::kDynamicSigned));
  Decode(first.array(BlockCode::kDynamicSigned), 256, values.data());
  ASSERT_GT(values[7], -3);
  Coded again(BlockCode::kDynamicSigned, 256);
  Recode(values.data(), 256, again.array(BlockCode::kDynamicSigned));
  EXPECT_EQ(again.codes, first.codes);
  EXPECT_EQ(again.scales, first.scales);
}

TEST(BlockRecodeTest, Recode_OtherValues_AreEncoded) {
  std::mt19937 random(8);
  const std::vector<float> values = Values(random, 300, true);
  Coded encoded(BlockCode::kDynamicSigned, 300);
  Encode(values.data(), 300, encoded.array(BlockCode::kDynamicSigned));
  Coded recoded(BlockCode::kDynamicSigned, 300);
  Recode(values.data(), 300, recoded.array(BlockCode::kDynamicSigned));
  EXPECT_EQ(recoded.codes, encoded.codes);
  EXPECT_EQ(recoded.scales, encoded.scales);
}

}  // namespace
}  // namespace optshard
