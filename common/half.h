// The two 16-bit types, bit by bit: what dtype_conversion.h does to each element of an array.
#ifndef OPTSHARD_COMMON_HALF_H_
#define OPTSHARD_COMMON_HALF_H_

#include <cstdint>
#include <cstring>

#include "common/host_device.h"

namespace optshard {

// Pure functions, constexpr in spirit. Widening is exact; a NaN keeps its payload. Narrowing rounds
// to nearest, ties to even, overflows to infinity and gives one NaN for all of them, with the bits
// that PyTorch gives: 0x7fc0 in bfloat16, and in float16 0x7e00 with the NaN's sign.

OPTSHARD_HOST_DEVICE inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

OPTSHARD_HOST_DEVICE inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

OPTSHARD_HOST_DEVICE inline float FromBFloat16(uint16_t bits) {
  return FloatOf(static_cast<uint32_t>(bits) << 16);
}

OPTSHARD_HOST_DEVICE inline uint16_t ToBFloat16(float value) {
  const uint32_t bits = BitsOf(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  // Just below half of what is cut off, and one more where the kept part is odd.
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

OPTSHARD_HOST_DEVICE inline float FromFloat16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7fff;
  if (magnitude >= 0x7c00) return FloatOf(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  if (magnitude >= 0x0400) return FloatOf(sign | ((magnitude << 13) + ((127 - 15) << 23)));
  // Denormal: so many units of 2^-24.
  return FloatOf(sign | BitsOf(static_cast<float>(magnitude) * 0x1p-24f));
}

OPTSHARD_HOST_DEVICE inline uint16_t ToFloat16(float value) {
  const uint32_t bits = BitsOf(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and more round to infinity
  if (magnitude < 0x38800000) {
    // Below 2^-14 a denormal: adding 1/2, whose last bit is worth 2^-24, rounds to such units.
    return sign | static_cast<uint16_t>(BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f));
  }
  const uint32_t rounded = magnitude - ((127 - 15) << 23) + 0xfff + (magnitude >> 13 & 1);
  return sign | static_cast<uint16_t>(rounded >> 13);
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_HALF_H_
