// Corrections of single 16-bit parameters, with the bits of common/parameter_correction.h: for
// kernels.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_CORRECTIONS_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_CORRECTIONS_H_

#include <cstdint>

#include "common/half.h"
#include "common/host_device.h"
#include "server/update/cuda/element_arrays.h"
#include "server/update/cuda/element_codes.h"
#include "server/update/cuda/kernel_arguments.h"

namespace optshard {
namespace kernels {

// Half the distance to the next number, as a share of the power of two below a number.
OPTSHARD_HOST_DEVICE inline float HalfOfUnit(ArrayKind half) {
  return half == ArrayKind::kBFloat16 ? 0x1p-8f : 0x1p-11f;
}
OPTSHARD_HOST_DEVICE inline float UnitsPerHalf(ArrayKind half) {
  return half == ArrayKind::kBFloat16 ? 0x1p8f : 0x1p11f;
}

// The power of two below the parameter's size: infinity of one that is not finite.
OPTSHARD_HOST_DEVICE inline float PowerBelow(ArrayKind half, float parameter) {
  const float smallest = half == ArrayKind::kBFloat16 ? 0x1p-126f : 0x1p-14f;
  const float power = FloatOf(BitsOf(parameter) & kInfinityBits);
  return power > smallest ? power : smallest;
}

OPTSHARD_HOST_DEVICE inline float CorrectedBy(ArrayKind half, float parameter, int8_t correction) {
  const float power = PowerBelow(half, parameter);
  const float share = static_cast<float>(correction) / 127.0f;
  const float corrected = parameter + share * (power * HalfOfUnit(half));
  return BitsOf(power) == kInfinityBits ? parameter : corrected;
}

// `rounded`: the value, rounded to the parameter's type and widened.
OPTSHARD_HOST_DEVICE inline int8_t CorrectionOf(ArrayKind half, float value, float rounded) {
  const float power = PowerBelow(half, rounded);
  // All of this is exact: powers of two, and an error with few digits.
  const float share = (value - rounded) * UnitsPerHalf(half) / power;
  const auto correction = static_cast<int8_t>(RoundedToEven(Clamp(share, -1.0f, 1.0f) * 127.0f));
  return BitsOf(power) == kInfinityBits ? 0 : correction;
}

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_ELEMENT_CORRECTIONS_H_
