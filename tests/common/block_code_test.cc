// The codes against definitions written down a second time, by every instruction set of this CPU.
#include "common/block_code.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/dynamic_map.h"
#include "common/half.h"
#include "common/lines_ahead.h"
#include "gtest/gtest.h"
#include "tests/common/coded_values.h"
#include "tests/testing/simd_targets.h"

namespace optshard::testing {
namespace {

constexpr BlockCode kAllCodes[] = {BlockCode::kDynamicSigned, BlockCode::kDynamicUnsigned,
                                   BlockCode::kCompandedAverage, BlockCode::kCompandedSquare};

// What the code's value is, times the scale, by the formats' definitions.
double ValueOf(BlockCode code, uint8_t byte, double scale) {
  const DynamicMap& map =
      code == BlockCode::kDynamicSigned ? DynamicMap::Signed() : DynamicMap::Unsigned();
  switch (code) {
    case BlockCode::kDynamicSigned:
      return (byte < 127 ? -1.0 : 1.0) * map.values[std::abs(byte - 127)] * scale;
    case BlockCode::kDynamicUnsigned:
      return map.values[byte] * scale;
    case BlockCode::kCompandedAverage: {
      const double y = static_cast<int8_t>(byte) / 127.0;
      return y / (2 - std::abs(y)) * scale;
    }
    case BlockCode::kCompandedSquare:
      return std::pow(byte / 255.0 * scale, 2);
  }
  return 0;
}

// Where the values are evenly spaced: there the nearest code is taken.
double Companded(BlockCode code, double value, double scale) {
  if (code == BlockCode::kCompandedSquare) return std::sqrt(value) / scale * 255;
  if (code == BlockCode::kCompandedAverage) {
    return 2 * (value / scale) / (1 + std::abs(value / scale)) * 127;
  }
  return value / scale;
}

class BlockCodeTest : public EveryTargetTest, public ::testing::WithParamInterface<BlockCode> {};
using DynamicCodeTest = EveryTargetTest;

TEST(DynamicMap, Values_AreThoseOfBitsandbytes) {
  for (const bool is_signed : {true, false}) {
    // As bitsandbytes makes them: the means of neighbouring boundaries, decade by decade.
    std::vector<double> expected = {0};
    for (int d = 0; d < 7; ++d) {
      const int count = (is_signed ? 1 : 2) << d;
      for (int j = 0; j < count; ++j) {
        const double lower = 0.1 + 0.9 * j / count;
        const double upper = 0.1 + 0.9 * (j + 1) / count;
        expected.push_back(std::pow(10, d - 6) * (lower + upper) / 2);
      }
    }
    expected.push_back(1);
    const DynamicMap& map = is_signed ? DynamicMap::Signed() : DynamicMap::Unsigned();
    ASSERT_EQ(map.largest + 1, static_cast<int>(expected.size()));
    for (int k = 0; k <= map.largest; ++k) {
      EXPECT_NEAR(map.values[k], expected[k], expected[k] * 0x1p-22) << k;
    }
  }
}

TEST_P(BlockCodeTest, EveryCode_ComesBackFromItsValue) {
  const BlockCode code = GetParam();
  for (const float scale : {1.0f, 0x1.8p-20f, 4096.0f}) {
    // Each block ends with the code of its largest value, and has others before it.
    const auto largest = static_cast<uint8_t>(code == BlockCode::kCompandedAverage ? 127 : 255);
    const int64_t block = BlockElements(code);
    Coded coded(code, 512);
    uint8_t next = 0;
    for (int64_t i = 0; i < 512; ++i) {
      const bool last = i % block == block - 1;
      if (code == BlockCode::kCompandedAverage && next == 128) ++next;  // -128 is no code
      coded.codes[i] = last ? largest : next++;
    }
    for (int64_t b = 0; b < 512 / block; ++b) {
      if (IsDynamic(code)) {
        std::memcpy(&coded.scales[2 * b], &scale, sizeof(scale));
      } else {
        coded.scales[b] = ToFloat16(scale);
      }
    }
    const std::vector<float> values = Decoded(coded);
    for (int64_t i = 0; i < 512; ++i) {
      const double expected = ValueOf(code, coded.codes[i], scale);
      ASSERT_NEAR(values[i], expected, std::abs(expected) * 0x1p-21) << i;
    }
    EXPECT_TRUE(Encoded(code, values) == coded) << scale;
  }
}

TEST_P(BlockCodeTest, RandomValues_GetTheNearestCode) {
  const BlockCode code = GetParam();
  const int64_t block = BlockElements(code);
  for (const double size : {1.0, 3e-5, 700.0}) {
    const std::vector<float> values = RandomValues(code, 2048, size, 1);
    const Coded coded = Encoded(code, values);
    for (size_t i = 0; i < values.size(); ++i) {
      const double scale = coded.scale(static_cast<int64_t>(i) / block);
      const double wanted = Companded(code, values[i], scale);
      const auto distance = [&](int byte) {
        const auto value = ValueOf(code, static_cast<uint8_t>(byte), scale);
        return std::abs(Companded(code, value, scale) - wanted);
      };
      double least = distance(coded.codes[i]);
      for (int byte = 0; byte < 256; ++byte) {
        if (code == BlockCode::kCompandedAverage && byte == 128) continue;
        least = std::min(least, distance(byte));
      }
      ASSERT_LE(distance(coded.codes[i]), least + std::abs(wanted) * 1e-6)
          << values[i] << " of scale " << scale << " has code " << int{coded.codes[i]};
    }
  }
}

TEST_P(BlockCodeTest, EveryInstructionSet_GivesTheSameBits) {
  const BlockCode code = GetParam();
  const std::vector<float> values = RandomValues(code, 1500, 10, 2);
  ChooseTarget(0);
  const Coded expected = Encoded(code, values);
  const std::vector<float> decoded = Decoded(expected);
  for (const int64_t target : AllTargets()) {
    ChooseTarget(target);
    EXPECT_TRUE(Encoded(code, values) == expected) << TargetNameOf(target);
    const std::vector<float> again = Decoded(expected);
    EXPECT_EQ(std::memcmp(again.data(), decoded.data(), decoded.size() * sizeof(float)), 0)
        << TargetNameOf(target);
  }
}

TEST_P(BlockCodeTest, IncompleteBlock_IsThatOfTheValuesAndZeros) {
  const BlockCode code = GetParam();
  for (const int64_t elements : {1, 31, 33, 255, 257, 1000}) {
    std::vector<float> values = RandomValues(code, elements, 1, 3);
    Coded coded = Encoded(code, values);
    EXPECT_TRUE(coded.guards_stand()) << elements;
    const std::vector<float> decoded = Decoded(coded);
    values.resize((elements / 256 + 1) * 256);
    Coded whole = Encoded(code, values);
    EXPECT_TRUE(std::equal(coded.codes.begin(), coded.codes.end() - 1, whole.codes.begin()));
    EXPECT_TRUE(std::equal(coded.scales.begin(), coded.scales.end() - 1, whole.scales.begin()));
    const std::vector<float> of_whole = Decoded(whole);
    EXPECT_TRUE(std::equal(decoded.begin(), decoded.end(), of_whole.begin())) << elements;
  }
}

TEST_P(BlockCodeTest, PartsCutOnTheGrid_GiveTheCodesOfTheWhole) {
  const BlockCode code = GetParam();
  const std::vector<float> values = RandomValues(code, 1000, 1, 4);
  Coded parts(code, 1000);
  const int64_t cuts[] = {0, kCodeGrid, 3 * kCodeGrid, 1000};
  for (int c = 0; c < 3; ++c) {
    Encode(&values[cuts[c]], cuts[c + 1] - cuts[c], parts.array().From(cuts[c]));
  }
  EXPECT_TRUE(parts == Encoded(code, values));
}

TEST_P(BlockCodeTest, NotFiniteValue_MakesItsBlockNaNAndNoOther) {
  const BlockCode code = GetParam();
  const int64_t block = BlockElements(code);
  for (const float bad : {std::nanf(""), -std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    std::vector<float> values = RandomValues(code, 3 * block, 1, 5);
    values[block + 7] = bad;
    ChooseTarget(0);
    const Coded expected = Encoded(code, values);
    for (const int64_t target : AllTargets()) {
      ChooseTarget(target);
      EXPECT_TRUE(Encoded(code, values) == expected) << TargetNameOf(target);
      const std::vector<float> decoded = Decoded(expected);
      for (int64_t i = 0; i < 3 * block; ++i) {
        ASSERT_EQ(std::isnan(decoded[i]), i / block == 1) << TargetNameOf(target) << " " << i;
      }
    }
  }
}

TEST_P(BlockCodeTest, Zeros_StayZerosWithoutASign) {
  std::vector<float> values(300, 0.0f);
  values[5] = -0.0f;
  for (const float value : Decoded(Encoded(GetParam(), values))) {
    ASSERT_EQ(BitsOf(value), 0u);
  }
  // As new memory is.
  Coded fresh(GetParam(), 300);
  std::fill(fresh.codes.begin(), fresh.codes.end(), 0);
  std::fill(fresh.scales.begin(), fresh.scales.end(), 0);
  for (const float value : Decoded(fresh)) ASSERT_EQ(BitsOf(value), 0u);
}

// What is fetched meanwhile changes nothing.
TEST_P(BlockCodeTest, FetchingMeanwhile_SameBits) {
  const std::vector<float> values = RandomValues(GetParam(), 1500, 10, 6);
  const Coded expected = Encoded(GetParam(), values);
  const std::vector<float> decoded = Decoded(expected);
  for (const int64_t calls : {0, 1, 7, 1000}) {
    LinesAhead lines;
    for (int k = 0; k < 20; ++k) lines.Add(values.data() + k, int64_t{64} * k);
    lines.SpreadOver(calls);
    Coded coded(GetParam(), 1500);
    Encode(values.data(), 1500, coded.array(), &lines);
    EXPECT_TRUE(coded == expected);
    std::vector<float> again(1500);
    Decode(coded.array(), 1500, again.data(), &lines);
    EXPECT_EQ(again, decoded);
  }
}

INSTANTIATE_TEST_SUITE_P(AllCodes, BlockCodeTest, ::testing::ValuesIn(kAllCodes));

TEST(DynamicCode, ValuesAroundTheMiddleOfTwoCodes_GetTheNearerOne) {
  for (const bool is_signed : {true, false}) {
    const DynamicMap& map = is_signed ? DynamicMap::Signed() : DynamicMap::Unsigned();
    const BlockCode code = is_signed ? BlockCode::kDynamicSigned : BlockCode::kDynamicUnsigned;
    std::vector<float> values;
    std::vector<int> ranks;
    for (int k = 0; k < map.largest; ++k) {
      const double middle = (static_cast<double>(map.values[k]) + map.values[k + 1]) / 2;
      float value = static_cast<float>(middle);
      for (int step = 0; step < 3; ++step) value = std::nextafter(value, 0.0f);
      for (int step = 0; step < 6; ++step, value = std::nextafter(value, 1.0f)) {
        values.push_back(value);
        ranks.push_back(value < middle ? k : k + 1);
      }
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const float sign = is_signed && i % 2 == 1 ? -1.0f : 1.0f;
      const Coded coded = Encoded(code, {sign * values[i], 1.0f});
      // There is no code for -1.
      const int rank = sign < 0 ? std::min(ranks[i], 127) : ranks[i];
      const int expected = is_signed ? 127 + static_cast<int>(sign) * rank : rank;
      ASSERT_EQ(int{coded.codes[0]}, expected) << sign * values[i];
    }
  }
}

// The rank of a quotient that has been rounded to float, as a definition.
int RankOf(const DynamicMap& map, float quotient) {
  int rank = 0;
  while (rank < map.largest && (static_cast<double>(map.values[rank]) + map.values[rank + 1]) / 2 <=
                                   static_cast<double>(quotient)) {
    ++rank;
  }
  return rank;
}

TEST_F(DynamicCodeTest, Codes_AreThoseOfTheRoundedQuotient) {
  // Small and large scales, too, of which the inverse is no normal number.
  for (const float scale : {0.7f, 0x1.fffffep5f, 0x1.000002p-3f, 0x1.8p-145f, 0x1.234568p-126f,
                            0x1.3p-99f, 0x1.fffffep99f, 0x1.654322p127f}) {
    for (const bool is_signed : {true, false}) {
      const DynamicMap& map = is_signed ? DynamicMap::Signed() : DynamicMap::Unsigned();
      std::vector<float> values;
      for (int k = 0; k < map.largest; ++k) {
        const double middle = (static_cast<double>(map.values[k]) + map.values[k + 1]) / 2;
        auto value = static_cast<float>(middle * scale);
        for (int step = 0; step < 8; ++step) value = std::nextafter(value, 0.0f);
        for (int step = 0; step < 16; ++step, value = std::nextafter(value, HUGE_VALF)) {
          if (values.size() % 256 == 255) values.push_back(scale);
          values.push_back(std::min(value, scale));
        }
      }
      values.push_back(scale);
      for (const int64_t target : AllTargets()) {
        ChooseTarget(target);
        const Coded coded =
            Encoded(is_signed ? BlockCode::kDynamicSigned : BlockCode::kDynamicUnsigned, values);
        for (size_t i = 0; i < values.size(); ++i) {
          const int rank = RankOf(map, values[i] / scale);
          ASSERT_EQ(int{coded.codes[i]}, is_signed ? 127 + rank : rank)
              << values[i] << " of scale " << scale << ", " << TargetNameOf(target);
        }
      }
    }
  }
}

}  // namespace
}  // namespace optshard::testing
