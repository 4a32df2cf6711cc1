#include "common/dtype_conversion.h"

#include "common/fatal.h"
#include "common/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/dtype_conversion.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

// Highway's own conversions truncate to bfloat16, and its float16 ones depend on the instruction
// set; so both are made of integers here. Memory takes longer than they do.
HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::ScalableTag<uint32_t>;
using Halves = hn::Rebind<uint16_t, Words>;
using Bits = hn::Vec<Words>;

HWY_INLINE Bits Const(uint32_t value) { return hn::Set(Words(), value); }

struct BFloat16 {
  static HWY_INLINE Bits Widen(Bits half) { return hn::ShiftLeft<16>(half); }
  static HWY_INLINE Bits Narrow(Bits bits) {
    const Bits odd = hn::And(hn::ShiftRight<16>(bits), Const(1));
    const Bits rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, Const(0x7fff))));
    const auto is_nan = hn::Gt(hn::And(bits, Const(0x7fffffff)), Const(0x7f800000));
    return hn::IfThenElse(is_nan, Const(0x7fc0), rounded);
  }
  static float WidenOne(uint16_t half) { return FromBFloat16(half); }
  static uint16_t NarrowOne(float value) { return ToBFloat16(value); }
};

struct Float16 {
  static HWY_INLINE Bits Widen(Bits half) {
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

// Who converts a large array does it piece by piece, too short for the hardware to notice a stream.
// May reach behind the array: it is only a hint.
HWY_INLINE void FetchAhead(const uint16_t* at) {
  constexpr uintptr_t kBytesAhead = 2048;
  hwy::Prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(at) + kBytesAhead));
}

template <class Half>
void WidenAll(const uint16_t* from, int64_t elements, float* to) {
  const auto width = static_cast<int64_t>(hn::Lanes(Words()));
  int64_t i = 0;
  for (; i + width <= elements; i += width) {
    FetchAhead(from + i);
    const Bits half = hn::PromoteTo(Words(), hn::LoadU(Halves(), from + i));
    hn::StoreU(hn::BitCast(Floats(), Half::Widen(half)), Floats(), to + i);
  }
  for (; i < elements; ++i) to[i] = Half::WidenOne(from[i]);
}

template <class Half>
void NarrowAll(const float* from, int64_t elements, uint16_t* to) {
  const auto width = static_cast<int64_t>(hn::Lanes(Words()));
  int64_t i = 0;
  for (; i + width <= elements; i += width) {
    const Bits bits = hn::BitCast(Words(), hn::LoadU(Floats(), from + i));
    // All are below 0x10000, so that saturation changes none.
    const auto halves = hn::BitCast(hn::RebindToSigned<Words>(), Half::Narrow(bits));
    hn::StoreU(hn::DemoteTo(Halves(), halves), Halves(), to + i);
  }
  for (; i < elements; ++i) to[i] = Half::NarrowOne(from[i]);
}

void WidenBFloat16(const uint16_t* from, int64_t elements, float* to) {
  WidenAll<BFloat16>(from, elements, to);
}
void WidenFloat16(const uint16_t* from, int64_t elements, float* to) {
  WidenAll<Float16>(from, elements, to);
}
void NarrowBFloat16(const float* from, int64_t elements, uint16_t* to) {
  NarrowAll<BFloat16>(from, elements, to);
}
void NarrowFloat16(const float* from, int64_t elements, uint16_t* to) {
  NarrowAll<Float16>(from, elements, to);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace optshard {
namespace {

HWY_EXPORT(WidenBFloat16);
HWY_EXPORT(WidenFloat16);
HWY_EXPORT(NarrowBFloat16);
HWY_EXPORT(NarrowFloat16);

[[noreturn]] void NotHalf(DType dtype) {
  Fatal("%s is not a 16-bit type", std::string(NameOf(dtype)));
}

}  // namespace

void Widen(DType half, const void* from, int64_t elements, float* to) {
  const auto* const values = static_cast<const uint16_t*>(from);
  switch (half) {
    case DType::kBFloat16:
      return HWY_DYNAMIC_DISPATCH(WidenBFloat16)(values, elements, to);
    case DType::kFloat16:
      return HWY_DYNAMIC_DISPATCH(WidenFloat16)(values, elements, to);
    default:
      NotHalf(half);
  }
}

void Narrow(DType half, const float* from, int64_t elements, void* to) {
  auto* const values = static_cast<uint16_t*>(to);
  switch (half) {
    case DType::kBFloat16:
      return HWY_DYNAMIC_DISPATCH(NarrowBFloat16)(from, elements, values);
    case DType::kFloat16:
      return HWY_DYNAMIC_DISPATCH(NarrowFloat16)(from, elements, values);
    default:
      NotHalf(half);
  }
}

}  // namespace optshard
#endif  // HWY_ONCE
