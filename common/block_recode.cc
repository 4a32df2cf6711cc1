#include "common/block_recode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/dynamic_map.h"
#include "common/half.h"

namespace optshard {
namespace {

// How far from the nearest the right scale may be, in units in the last place: the quotient that
// finds it is rounded, and so was the product.
constexpr int kNear = 2;
constexpr int kZeroCode = 127;  // of a signed map
constexpr int kLargestNegativeRank = 127;

// A block, and room for codes that may be its own.
struct Block {
  const float* values = nullptr;
  int64_t elements = 0;
  CodedArray to;
  uint8_t codes[kCodeGrid] = {};

  CodedArray With(void* scale) { return {to.code, codes, scale}; }
};

bool IsDecoded(const CodedArray& array, const Block& block, bool* equal) {
  float decoded[kCodeGrid];
  Decode(array, block.elements, decoded);
  bool all = true;
  for (int64_t i = 0; i < block.elements; ++i) {
    equal[i] = BitsOf(decoded[i]) == BitsOf(block.values[i]);
    all = all && equal[i];
  }
  return all;
}

int GuessOf(BlockCode code, float value, float scale) {
  const float x = std::abs(value) / scale;
  if (code == BlockCode::kCompandedSquare) {
    return static_cast<int>(std::lround(255 * std::sqrt(std::abs(value)) / scale));
  }
  int size = 0;
  if (code == BlockCode::kCompandedAverage) {
    size = static_cast<int>(std::lround(254 * x / (1 + x)));
    return value < 0 ? -size : size;
  }
  const DynamicMap& map = DynamicMap::Signed();
  size =
      static_cast<int>(std::upper_bound(map.middles, map.middles + map.largest, x) - map.middles);
  return value < 0 ? kZeroCode - size : kZeroCode + size;
}

uint8_t Limited(BlockCode code, int number) {
  if (code == BlockCode::kCompandedAverage) {
    return static_cast<uint8_t>(static_cast<int8_t>(std::clamp(number, -127, 127)));
  }
  return static_cast<uint8_t>(std::clamp(number, 0, 255));
}

// Whether some codes stand for the values with this scale, which is kept as `kept`.
bool FindCodes(Block& block, float scale, void* kept) {
  uint8_t found[kCodeGrid] = {};
  bool known[kCodeGrid] = {};
  for (const int off : {0, -1, 1}) {
    for (int64_t i = 0; i < block.elements; ++i) {
      block.codes[i] = Limited(block.to.code, GuessOf(block.to.code, block.values[i], scale) + off);
    }
    bool equal[kCodeGrid];
    IsDecoded(block.With(kept), block, equal);
    for (int64_t i = 0; i < block.elements; ++i) {
      if (equal[i] && !known[i]) found[i] = block.codes[i];
      known[i] = known[i] || equal[i];
    }
  }
  if (!std::all_of(known, known + block.elements, [](bool each) { return each; })) return false;
  std::copy_n(found, block.elements, block.codes);
  return true;
}

bool FindDynamic(Block& block, float largest) {
  float scale = largest / DynamicMap::Signed().values[kLargestNegativeRank];
  for (int i = 0; i < kNear; ++i) scale = std::nextafter(scale, 0.0f);
  for (int i = 0; i <= 2 * kNear; ++i) {
    if (FindCodes(block, scale, &scale)) {
      std::memcpy(block.to.scales, &scale, sizeof(scale));
      return true;
    }
    scale = std::nextafter(scale, std::numeric_limits<float>::infinity());
  }
  return false;
}

// Float16 has few digits below 2^-14.
bool FindCompanded(Block& block) {
  uint16_t kept = 0;
  std::memcpy(&kept, block.to.scales, sizeof(kept));
  for (int i = 0; i <= 2 * kNear; ++i) {
    auto near = static_cast<uint16_t>(std::max(kept - kNear + i, 1));
    if (FindCodes(block, FromFloat16(near), &near)) {
      std::memcpy(block.to.scales, &near, sizeof(near));
      return true;
    }
  }
  return false;
}

void RecodeBlock(const float* values, int64_t elements, const CodedArray& to) {
  Block block;
  block.values = values;
  block.elements = elements;
  block.to = to;
  bool equal[kCodeGrid];
  if (IsDecoded(to, block, equal)) return;
  float largest = 0;
  for (int64_t i = 0; i < elements; ++i) {
    if (!std::isfinite(values[i])) return;
    largest = std::max(largest, std::abs(values[i]));
  }
  const bool found =
      to.code == BlockCode::kDynamicSigned ? FindDynamic(block, largest) : FindCompanded(block);
  if (found) std::copy_n(block.codes, elements, to.codes);
}

}  // namespace

void Recode(const float* values, int64_t elements, const CodedArray& to) {
  Encode(values, elements, to);
  if (to.code == BlockCode::kDynamicUnsigned) return;  // its scale is a value of its block
  const int64_t block = BlockElements(to.code);
  for (int64_t begin = 0; begin < elements; begin += block) {
    RecodeBlock(values + begin, std::min(block, elements - begin), to.From(begin));
  }
}

}  // namespace optshard
