#include "tests/common/coded_values.h"

#include <cmath>
#include <random>

#include "common/half.h"

namespace optshard::testing {
namespace {

constexpr uint32_t kSeed = 20261122;

bool IsSigned(BlockCode code) {
  return code == BlockCode::kDynamicSigned || code == BlockCode::kCompandedAverage;
}

}  // namespace

bool IsDynamic(BlockCode code) { return BlockElements(code) == 256; }

Coded::Coded(BlockCode block_code, int64_t elements)
    : code(block_code),
      codes(CodeBytes(code, elements) + 1, 0xee),
      scales(ScaleBytes(code, elements) / 2 + 1, 0xeeee) {}

float Coded::scale(int64_t block) const {
  if (!IsDynamic(code)) return FromFloat16(scales[block]);
  return FloatOf(scales[2 * block] | static_cast<uint32_t>(scales[2 * block + 1]) << 16);
}

Coded Encoded(BlockCode code, const std::vector<float>& values) {
  const auto elements = static_cast<int64_t>(values.size());
  Coded coded(code, elements);
  Encode(values.data(), elements, coded.array());
  return coded;
}

std::vector<float> Decoded(Coded coded) {
  std::vector<float> values(coded.codes.size() - 1);
  Decode(coded.array(), static_cast<int64_t>(values.size()), values.data());
  return values;
}

std::vector<float> RandomValues(BlockCode code, int64_t elements, double size, uint32_t seed) {
  std::mt19937 random(kSeed + seed);
  std::uniform_real_distribution<double> exponent(-9, 0);
  std::vector<float> values(elements);
  for (float& value : values) {
    value = static_cast<float>(size * std::pow(10, exponent(random)));
    if (IsSigned(code) && random() % 2 == 0) value = -value;
  }
  return values;
}

}  // namespace optshard::testing
