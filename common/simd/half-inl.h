// Vectors of the 16-bit types. Compiled once for every instruction set.
#if defined(OPTSHARD_COMMON_SIMD_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_COMMON_SIMD_HALF_INL_H_
#undef OPTSHARD_COMMON_SIMD_HALF_INL_H_
#else
#define OPTSHARD_COMMON_SIMD_HALF_INL_H_
#endif

#include <cstdint>

#include "common/half.h"
#include "common/simd/lanes-inl.h"
#include "common/simd/scalar.h"
#include "hwy/highway.h"

// Highway's own conversions truncate to bfloat16, and its float16 ones depend on the instruction
// set; so both are made of integers here, to the bits of common/half.h.
HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {

namespace half_internal {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::ScalableTag<uint32_t>;
using Halves = hn::Rebind<uint16_t, Words>;
using Bits = hn::Vec<Words>;

HWY_INLINE Bits Const(uint32_t value) { return hn::Set(Words(), value); }

}  // namespace half_internal

struct BFloat16 {
  using Bits = half_internal::Bits;

  static HWY_INLINE Bits Widen(Bits half) { return half_internal::hn::ShiftLeft<16>(half); }
  static HWY_INLINE Bits Narrow(Bits bits) {
    namespace hn = half_internal::hn;
    using half_internal::Const;
    const Bits odd = hn::And(hn::ShiftRight<16>(bits), Const(1));
    const Bits rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, Const(0x7fff))));
    const auto is_nan = hn::Gt(hn::And(bits, Const(0x7fffffff)), Const(0x7f800000));
    return hn::IfThenElse(is_nan, Const(0x7fc0), rounded);
  }
  static float WidenOne(uint16_t half) { return FromBFloat16(half); }
  static uint16_t NarrowOne(float value) { return ToBFloat16(value); }
};

struct Float16 {
  using Bits = half_internal::Bits;

  static HWY_INLINE Bits Widen(Bits half) {
    namespace hn = half_internal::hn;
    using half_internal::Const;
    using half_internal::Floats;
    using half_internal::Words;
    const Bits sign = hn::ShiftLeft<16>(hn::And(half, Const(0x8000)));
    const Bits magnitude = hn::And(half, Const(0x7fff));
    const Bits shifted = hn::ShiftLeft<13>(magnitude);
    const Bits normal = hn::Add(shifted, Const((127 - 15) << 23));
    const Bits special = hn::Or(Const(0x7f800000), shifted);
    const auto units = hn::ConvertTo(Floats(), hn::BitCast(hn::RebindToSigned<Words>(), magnitude));
    const Bits denormal = hn::BitCast(Words(), hn::Mul(units, hn::Set(Floats(), 0x1p-24f)));
    const Bits small = hn::IfThenElse(hn::Gt(Const(0x0400), magnitude), denormal, normal);
    const Bits any = hn::IfThenElse(hn::Gt(magnitude, Const(0x7bff)), special, small);
    return hn::Or(sign, any);
  }
  static HWY_INLINE Bits Narrow(Bits bits) {
    namespace hn = half_internal::hn;
    using half_internal::Const;
    using half_internal::Floats;
    using half_internal::Words;
    const Bits sign = hn::And(hn::ShiftRight<16>(bits), Const(0x8000));
    const Bits magnitude = hn::And(bits, Const(0x7fffffff));
    const Bits odd = hn::And(hn::ShiftRight<13>(magnitude), Const(1));
    const Bits normal = hn::ShiftRight<13>(
        hn::Add(hn::Sub(magnitude, Const((127 - 15) << 23)), hn::Add(odd, Const(0xfff))));
    const auto half = hn::Set(Floats(), 0.5f);
    const Bits denormal =
        hn::Sub(hn::BitCast(Words(), hn::Add(hn::BitCast(Floats(), magnitude), half)),
                hn::BitCast(Words(), half));
    const Bits small = hn::IfThenElse(hn::Gt(Const(0x38800000), magnitude), denormal, normal);
    const Bits finite = hn::IfThenElse(hn::Gt(magnitude, Const(0x477fefff)), Const(0x7c00), small);
    const Bits any = hn::IfThenElse(hn::Gt(magnitude, Const(0x7f800000)), Const(0x7e00), finite);
    return hn::Or(sign, any);
  }
  static float WidenOne(uint16_t half) { return FromFloat16(half); }
  static uint16_t NarrowOne(float value) { return ToFloat16(value); }
};

// The elements of an array of `Half`, one or a vector of them, widened and rounded.
template <class Half>
HWY_INLINE void LoadHalf(const uint16_t* from, Scalar& to) {
  to = Scalar(Half::WidenOne(*from));
}
template <class Half>
HWY_INLINE void LoadHalf(const uint16_t* from, Lanes& to) {
  namespace hn = half_internal::hn;
  const auto halves = hn::LoadU(half_internal::Halves(), from);
  const auto bits = Half::Widen(hn::PromoteTo(half_internal::Words(), halves));
  to = Lanes(hn::BitCast(half_internal::Floats(), bits));
}
template <class Half>
HWY_INLINE void StoreHalf(Scalar value, uint16_t* to) {
  *to = Half::NarrowOne(value.raw);
}
template <class Half>
HWY_INLINE void StoreHalf(Lanes value, uint16_t* to) {
  namespace hn = half_internal::hn;
  const auto bits = Half::Narrow(hn::BitCast(half_internal::Words(), value.raw));
  // All are below 0x10000, so that saturation changes none.
  const auto halves = hn::BitCast(hn::RebindToSigned<half_internal::Words>(), bits);
  hn::StoreU(hn::DemoteTo(half_internal::Halves(), halves), half_internal::Halves(), to);
}

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
