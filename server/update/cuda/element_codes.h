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

OPTSHARD_HOST_DEVICE inline int RoundedToEven(float value) {
  return static_cast<int>(__builtin_rintf(value));
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

OPTSHARD_HOST_DEVICE inline float Decode(ArrayKind kind, const DynamicTable* tables, uint8_t code,
                                         float scale) {
  switch (kind) {
    case ArrayKind::kDynamicSigned: {
      const int from_zero = code - tables[0].zero;
      const float size = tables[0].values[from_zero < 0 ? -from_zero : from_zero];
      // A negative value times a scale of 0 is -0, and adding 0 makes that 0.
      return (from_zero < 0 ? -size : size) * scale + 0.0f;
    }
    case ArrayKind::kDynamicUnsigned:
      return tables[1].values[code] * scale + 0.0f;
    case ArrayKind::kCompandedAverage: {
      const auto q = static_cast<float>(static_cast<int8_t>(code));
      return q / (254.0f - __builtin_fabsf(q)) * scale;
    }
    default: {
      const float root = static_cast<float>(code) * (1.0f / 255) * scale;
      return root * root;
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

// The rank of the nearest value: how many middles are at most `size`.
OPTSHARD_HOST_DEVICE inline int RankOf(const DynamicTable& table, float size) {
  int section = 0;
  OPTSHARD_UNROLL
  for (int s = 1; s < DynamicTable::kSections; ++s) section += size >= table.begins[s] ? 1 : 0;
  const float place = size * table.scale[section] + table.offset[section];
  int rank = RoundedToEven(Clamp(place, 0.0f, table.limit[section]));
  // The place is nearly right.
  while (rank < table.largest && size >= table.middles[rank]) ++rank;
  while (rank > 0 && size < table.middles[rank - 1]) --rank;
  return rank;
}

// The code of a block that has nothing to be divided by: only zeros, or a value that is not finite.
OPTSHARD_HOST_DEVICE inline uint8_t CodeOfZero(ArrayKind kind, const DynamicTable* tables) {
  return kind == ArrayKind::kDynamicSigned ? static_cast<uint8_t>(tables[0].zero) : 0;
}

// `scale`: of ScaleOf, neither 0 nor NaN.
OPTSHARD_HOST_DEVICE inline uint8_t Encode(ArrayKind kind, const DynamicTable* tables, float value,
                                           float scale) {
  switch (kind) {
    case ArrayKind::kDynamicSigned: {
      const float x = value / scale;
      const int rank = RankOf(tables[0], __builtin_fabsf(x));
      // There is no -1.
      const int code = x < 0 ? tables[0].zero - rank : tables[0].zero + rank;
      return static_cast<uint8_t>(code > 0 ? code : 0);
    }
    case ArrayKind::kDynamicUnsigned:
      return static_cast<uint8_t>(RankOf(tables[1], value / scale));
    case ArrayKind::kCompandedAverage: {
      const float companded = value / (scale + __builtin_fabsf(value)) * 254.0f;
      return static_cast<uint8_t>(
          static_cast<int8_t>(RoundedToEven(Clamp(companded, -127.0f, 127.0f))));
    }
    default: {
      const float root = __builtin_sqrtf(value > 0 ? value : 0.0f);
      return static_cast<uint8_t>(RoundedToEven(Clamp(root * (255.0f / scale), 0.0f, 255.0f)));
    }
  }
}

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_CODES_H_
