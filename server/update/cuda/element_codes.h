// Single elements to 8-bit codes and back, with the bits of common/block_code.h: for kernels.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_CODES_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_CODES_H_

#include <cstdint>

#include "common/half.h"
#include "common/host_device.h"
#include "server/update/cuda/kernel_arguments.h"

namespace optshard {
namespace kernels {

constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr uint32_t kNanBits = 0x7fc00000;

OPTSHARD_HOST_DEVICE inline bool IsDynamic(ArrayKind kind) {
  return kind == ArrayKind::kDynamicSigned || kind == ArrayKind::kDynamicUnsigned;
}
OPTSHARD_HOST_DEVICE inline bool IsCoded(ArrayKind kind) {
  return kind >= ArrayKind::kDynamicSigned;
}
// The elements of a block of codes are this power of two: dividing 64-bit numbers takes a GPU some
// seventy instructions.
OPTSHARD_HOST_DEVICE inline int BlockShift(ArrayKind kind) { return IsDynamic(kind) ? 8 : 5; }

OPTSHARD_HOST_DEVICE inline uint32_t MagnitudeBits(float value) {
  return BitsOf(value) & 0x7fffffff;
}

// Of numbers below 2^22: adding 1.5 * 2^23 leaves no place for a fraction. A GPU's own conversions
// take four times as long.
OPTSHARD_HOST_DEVICE inline int RoundedToEven(float value) {
  constexpr float kNoFraction = 0x1.8p23f;
  return static_cast<int>(BitsOf(value + kNoFraction) - BitsOf(kNoFraction));
}
OPTSHARD_HOST_DEVICE inline float FloatOfByte(uint8_t byte) {
  return FloatOf(0x4b000000 | byte) - 0x1p23f;
}
// Of numbers that are not NaN.
OPTSHARD_HOST_DEVICE inline float Clamp(float value, float least, float most) {
  const float raised = value > least ? value : least;
  return raised < most ? raised : most;
}

// The block's scale as it is kept.
OPTSHARD_HOST_DEVICE inline float LoadScale(const KernelArray& array, int64_t block) {
  OPTSHARD_IN_DEVICE_MEMORY(array.scales);
  if (IsDynamic(array.kind)) return static_cast<const float*>(array.scales)[block];
  return FromFloat16(static_cast<const uint16_t*>(array.scales)[block]);
}

// Four codes in a word.
OPTSHARD_HOST_DEVICE inline uint8_t CodeIn(const uint32_t* words, int k) {
  return static_cast<uint8_t>(words[k / 4] >> (8 * (k % 4)));
}

// Groups of four codes, each of one block.
template <int kGroups>
OPTSHARD_HOST_DEVICE inline void Decode(ArrayKind kind, const CodeTable* tables,
                                        const uint32_t* words, const float* scales, float* values) {
  constexpr int kCount = 4 * kGroups;
  // A negative value times a scale of 0 is -0, and adding 0 makes that 0.
  switch (kind) {
    case ArrayKind::kDynamicSigned:
      OPTSHARD_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const int from_zero = CodeIn(words, k) - 127;
        const float size = tables[0].values[from_zero < 0 ? -from_zero : from_zero];
        values[k] = (from_zero < 0 ? -size : size) * scales[k / 4] + 0.0f;
      }
      return;
    case ArrayKind::kDynamicUnsigned:
      OPTSHARD_UNROLL
      for (int k = 0; k < kCount; ++k) {
        values[k] = tables[1].values[CodeIn(words, k)] * scales[k / 4] + 0.0f;
      }
      return;
    case ArrayKind::kCompandedAverage:
      OPTSHARD_UNROLL
      for (int k = 0; k < kCount; ++k) {
        values[k] = tables[0].averages[CodeIn(words, k)] * scales[k / 4];
      }
      return;
    default:
      OPTSHARD_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const float root = FloatOfByte(CodeIn(words, k)) * (1.0f / 255) * scales[k / 4];
        values[k] = root * root;
      }
  }
}

// Of a block, by the bits of its largest absolute value: the scale, as it will be kept.
OPTSHARD_HOST_DEVICE inline float ScaleOf(ArrayKind kind, uint32_t largest) {
  if (largest >= kInfinityBits) return FloatOf(kNanBits);
  if (IsDynamic(kind) || largest == 0) return FloatOf(largest);
  const float value = FloatOf(largest);
  const float scale = kind == ArrayKind::kCompandedSquare ? __builtin_sqrtf(value) : value;
  return FromFloat16(ToFloat16(Clamp(scale, 0x1p-24f, 65504.0f)));
}

OPTSHARD_HOST_DEVICE inline void StoreScale(const KernelArray& array, int64_t block, float scale) {
  OPTSHARD_IN_DEVICE_MEMORY(array.scales);
  if (IsDynamic(array.kind)) {
    static_cast<float*>(array.scales)[block] = scale;
  } else {
    static_cast<uint16_t*>(array.scales)[block] = ToFloat16(scale);
  }
}

// A rank, and whether it may be wrong.
struct NearRank {
  int rank = 0;
  int doubts = 0;  // 0: it is right
};

// `x`: within CodeTable::kQuotientDoubt of the quotient whose rank is wanted, and not negative.
OPTSHARD_HOST_DEVICE inline NearRank RankNear(const CodeTable& table, float x) {
  const float size = x > CodeTable::kSmallest ? x : CodeTable::kSmallest;
  const auto bits = static_cast<int32_t>(BitsOf(size));
  const CodeTable::Octaves octaves = table.octaves[bits >> 24 & 15];
  const int32_t beyond = bits - octaves.begin;
  const CodeTable::Section section = table.sections[octaves.section + (beyond >= 0 ? 1 : 0)];
  const float place = size * section.scale + section.offset;
  const uint32_t sum = BitsOf(place < section.limit ? place : section.limit);
  // So many units above the middle are less than twice the doubt.
  constexpr int kOne = 1 << CodeTable::kFractionBits;
  constexpr auto kBeyond =
      static_cast<uint32_t>(kOne - static_cast<int>(2 * CodeTable::kPlaceDoubt * kOne));
  NearRank near;
  near.rank = static_cast<int>(sum >> CodeTable::kFractionBits & 0xff);
  // Branches would cost more than comparing both.
  const int by_place = (sum & kBeyond) == 0 ? 1 : 0;
  const int by_section = static_cast<uint32_t>(beyond) < 2 * CodeTable::kQuotientDoubt ? 1 : 0;
  near.doubts = by_place | by_section;
  return near;
}

// How many middles are at most x; `rank` is nearly right.
OPTSHARD_HOST_DEVICE inline int RankFrom(const CodeTable& table, int rank, float x) {
  while (rank < table.largest && x >= table.middles[rank]) ++rank;
  while (rank > 0 && x < table.middles[rank - 1]) --rank;
  return rank;
}

template <bool kSigned>
OPTSHARD_HOST_DEVICE inline uint8_t DynamicCode(int rank, bool is_negative) {
  if (!kSigned) return static_cast<uint8_t>(rank);
  // There is no -1.
  const int code = is_negative ? 127 - rank : 127 + rank;
  return static_cast<uint8_t>(code > 0 ? code : 0);
}

template <bool kSigned>
OPTSHARD_HOST_DEVICE inline uint32_t EncodeDynamic(const CodeTable& table, const float* values,
                                                   float scale) {
  // Beyond these an inverse is no normal number.
  const bool has_inverse = scale >= 0x1p-100f && scale <= 0x1p100f;
  const float inverse = 1.0f / scale;
  const auto size_of = [](float x) { return kSigned ? __builtin_fabsf(x) : x; };
  uint32_t word = 0;
  int doubts = has_inverse ? 0 : 1;
  OPTSHARD_UNROLL
  for (int k = 0; k < 4; ++k) {
    const NearRank near = RankNear(table, size_of(values[k] * inverse));
    word |= uint32_t{DynamicCode<kSigned>(near.rank, values[k] < 0)} << (8 * k);
    doubts |= near.doubts;
  }
  if (doubts == 0) return word;
  word = 0;
  for (int k = 0; k < 4; ++k) {
    const float x = values[k] / scale;
    const int near = RankNear(table, size_of(values[k] * inverse)).rank;
    word |= uint32_t{DynamicCode<kSigned>(RankFrom(table, near, size_of(x)), x < 0)} << (8 * k);
  }
  return word;
}

OPTSHARD_HOST_DEVICE inline uint32_t EncodeCompandedAverage(const float* values, float scale) {
  uint32_t word = 0;
  OPTSHARD_UNROLL
  for (int k = 0; k < 4; ++k) {
    const float companded = values[k] / (scale + __builtin_fabsf(values[k])) * 254.0f;
    const int code = RoundedToEven(Clamp(companded, -127.0f, 127.0f));
    word |= uint32_t{static_cast<uint8_t>(code)} << (8 * k);
  }
  return word;
}

OPTSHARD_HOST_DEVICE inline uint32_t EncodeCompandedSquare(const float* values, float scale) {
  const float parts_per_one = 255.0f / scale;
  uint32_t word = 0;
  OPTSHARD_UNROLL
  for (int k = 0; k < 4; ++k) {
    const float parts = __builtin_sqrtf(values[k] > 0 ? values[k] : 0.0f) * parts_per_one;
    const int code = RoundedToEven(parts < 255.0f ? parts : 255.0f);
    word |= static_cast<uint32_t>(code) << (8 * k);
  }
  return word;
}

// Of each group of four values, by the bits of its block's largest absolute one and the scale that
// ScaleOf makes of it.
template <int kGroups>
OPTSHARD_HOST_DEVICE inline void Encode(ArrayKind kind, const CodeTable* tables,
                                        const float* values, const uint32_t* largest,
                                        const float* scales, uint32_t* words) {
  // A block of zeros has nothing to be divided by, and one with a value that is not finite is NaN.
  const auto for_each_group = [&](uint32_t codes_of_zero, const auto& encode) {
    OPTSHARD_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      const bool is_finite = largest[group] != 0 && largest[group] < kInfinityBits;
      words[group] = is_finite ? encode(values + 4 * group, scales[group]) : codes_of_zero;
    }
  };
  switch (kind) {
    case ArrayKind::kDynamicSigned:
      return for_each_group(0x7f7f7f7f, [tables](const float* four, float scale) {
        return EncodeDynamic<true>(tables[0], four, scale);
      });
    case ArrayKind::kDynamicUnsigned:
      return for_each_group(0, [tables](const float* four, float scale) {
        return EncodeDynamic<false>(tables[1], four, scale);
      });
    case ArrayKind::kCompandedAverage:
      return for_each_group(
          0, [](const float* four, float scale) { return EncodeCompandedAverage(four, scale); });
    default:
      return for_each_group(
          0, [](const float* four, float scale) { return EncodeCompandedSquare(four, scale); });
  }
}

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_CODES_H_
