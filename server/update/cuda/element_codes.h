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
OPTSHARD_HOST_DEVICE inline int BlockElementsOf(ArrayKind kind) {
  return IsDynamic(kind) ? 256 : 32;
}

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
  if (IsDynamic(array.kind)) return static_cast<const float*>(array.scales)[block];
  return FromFloat16(static_cast<const uint16_t*>(array.scales)[block]);
}

// Codes of one block, four in a word.
OPTSHARD_HOST_DEVICE inline uint8_t CodeIn(const uint32_t* words, int k) {
  return static_cast<uint8_t>(words[k / 4] >> (8 * (k % 4)));
}

template <int kCount>
OPTSHARD_HOST_DEVICE inline void Decode(ArrayKind kind, const CodeTable* tables,
                                        const uint32_t* words, float scale, float* values) {
  // A negative value times a scale of 0 is -0, and adding 0 makes that 0.
  switch (kind) {
    case ArrayKind::kDynamicSigned:
      OPTSHARD_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const int from_zero = CodeIn(words, k) - 127;
        const float size = tables[0].values[from_zero < 0 ? -from_zero : from_zero];
        values[k] = (from_zero < 0 ? -size : size) * scale + 0.0f;
      }
      return;
    case ArrayKind::kDynamicUnsigned:
      OPTSHARD_UNROLL
      for (int k = 0; k < kCount; ++k)
        values[k] = tables[1].values[CodeIn(words, k)] * scale + 0.0f;
      return;
    case ArrayKind::kCompandedAverage:
      OPTSHARD_UNROLL
      for (int k = 0; k < kCount; ++k) values[k] = tables[0].averages[CodeIn(words, k)] * scale;
      return;
    default:
      OPTSHARD_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const float root = FloatOfByte(CodeIn(words, k)) * (1.0f / 255) * scale;
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
  if (IsDynamic(array.kind)) {
    static_cast<float*>(array.scales)[block] = scale;
  } else {
    static_cast<uint16_t*>(array.scales)[block] = ToFloat16(scale);
  }
}

// A rank, and whether it may be wrong.
struct NearRank {
  int rank = 0;
  bool is_in_doubt = false;
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
  near.is_in_doubt =
      (sum & kBeyond) == 0 || static_cast<uint32_t>(beyond) < 2 * CodeTable::kQuotientDoubt;
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

template <bool kSigned, int kCount>
OPTSHARD_HOST_DEVICE inline void EncodeDynamic(const CodeTable& table, const float* values,
                                               float scale, uint8_t* codes) {
  // Beyond these an inverse is no normal number.
  const bool has_inverse = scale >= 0x1p-100f && scale <= 0x1p100f;
  const float inverse = 1.0f / scale;
  const auto size_of = [](float x) { return kSigned ? __builtin_fabsf(x) : x; };
  bool is_in_doubt = !has_inverse;
  OPTSHARD_UNROLL
  for (int k = 0; k < kCount; ++k) {
    const NearRank near = RankNear(table, size_of(values[k] * inverse));
    codes[k] = DynamicCode<kSigned>(near.rank, values[k] < 0);
    is_in_doubt = is_in_doubt || near.is_in_doubt;
  }
  if (!is_in_doubt) return;
  OPTSHARD_UNROLL
  for (int k = 0; k < kCount; ++k) {
    const NearRank near = RankNear(table, size_of(values[k] * inverse));
    if (has_inverse && !near.is_in_doubt) continue;
    const float x = values[k] / scale;
    codes[k] = DynamicCode<kSigned>(RankFrom(table, near.rank, size_of(x)), x < 0);
  }
}

// Of a block that has nothing to be divided by: only zeros, or a value that is not finite.
OPTSHARD_HOST_DEVICE inline uint8_t CodeOfZero(ArrayKind kind, const CodeTable* tables) {
  return kind == ArrayKind::kDynamicSigned ? static_cast<uint8_t>(tables[0].zero) : 0;
}

// `scale`: of ScaleOf, neither 0 nor NaN.
template <int kCount>
OPTSHARD_HOST_DEVICE inline void Encode(ArrayKind kind, const CodeTable* tables,
                                        const float* values, float scale, uint8_t* codes) {
  switch (kind) {
    case ArrayKind::kDynamicSigned:
      return EncodeDynamic<true, kCount>(tables[0], values, scale, codes);
    case ArrayKind::kDynamicUnsigned:
      return EncodeDynamic<false, kCount>(tables[1], values, scale, codes);
    case ArrayKind::kCompandedAverage:
      OPTSHARD_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const float companded = values[k] / (scale + __builtin_fabsf(values[k])) * 254.0f;
        codes[k] = static_cast<uint8_t>(RoundedToEven(Clamp(companded, -127.0f, 127.0f)));
      }
      return;
    default: {
      const float parts_per_one = 255.0f / scale;
      OPTSHARD_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const float root = __builtin_sqrtf(values[k] > 0 ? values[k] : 0.0f);
        const float parts = root * parts_per_one;
        codes[k] = static_cast<uint8_t>(RoundedToEven(parts < 255.0f ? parts : 255.0f));
      }
    }
  }
}

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_CODES_H_
