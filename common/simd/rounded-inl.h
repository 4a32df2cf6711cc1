// Vectors of float32 to whole numbers. Compiled once for every instruction set.
#if defined(OPTSHARD_COMMON_SIMD_ROUNDED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_COMMON_SIMD_ROUNDED_INL_H_
#undef OPTSHARD_COMMON_SIMD_ROUNDED_INL_H_
#else
#define OPTSHARD_COMMON_SIMD_ROUNDED_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {

// To the nearest whole number, ties to even, of values below 2^22: by an addition, since the
// conversions of the instruction sets round in different ways.
template <class Vector>
HWY_INLINE auto Rounded(Vector value) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::DFromV<Vector> floats;
  const hn::RebindToSigned<hn::DFromV<Vector>> words;
  const auto shift = hn::Set(floats, 0x1.8p23f);
  return hn::Sub(hn::BitCast(words, hn::Add(value, shift)), hn::BitCast(words, shift));
}

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
