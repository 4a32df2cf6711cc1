#include "common/dtype_conversion.h"

#include "common/fatal.h"
#include "common/simd/scalar.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/dtype_conversion.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "common/simd/half-inl.h"
#include "common/simd/lanes-inl.h"
#include "common/simd/memory-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {
namespace {

// Returns how many elements it did: whole vectors only, or all one by one.
template <class Half, class E>
int64_t WidenBy(const uint16_t* from, int64_t begin, int64_t elements, float* to) {
  int64_t i = begin;
  for (; i + E::Width() <= elements; i += E::Width()) {
    // Who converts a large array does it in pieces that are too short for the hardware to notice.
    if (BeginsLine<E>(i)) FetchAhead(from + i);
    E value;
    LoadHalf<Half>(from + i, value);
    value.Store(to + i);
  }
  return i;
}

template <class Half, class E>
int64_t NarrowBy(const float* from, int64_t begin, int64_t elements, uint16_t* to) {
  int64_t i = begin;
  for (; i + E::Width() <= elements; i += E::Width()) StoreHalf<Half>(E::Load(from + i), to + i);
  return i;
}

template <class Half>
void WidenAll(const uint16_t* from, int64_t elements, float* to) {
  WidenBy<Half, Scalar>(from, WidenBy<Half, Lanes>(from, 0, elements, to), elements, to);
}

template <class Half>
void NarrowAll(const float* from, int64_t elements, uint16_t* to) {
  NarrowBy<Half, Scalar>(from, NarrowBy<Half, Lanes>(from, 0, elements, to), elements, to);
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
