// A vector of elements of the instruction set that is being compiled for. Each operation does to
// each lane what scalar.h does to its one number. Compiled once for every instruction set.
#if defined(OPTSHARD_COMMON_SIMD_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_COMMON_SIMD_LANES_INL_H_
#undef OPTSHARD_COMMON_SIMD_LANES_INL_H_
#else
#define OPTSHARD_COMMON_SIMD_LANES_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {

template <typename T>
struct LanesOf {
  using Number = T;
  using Tag = hwy::HWY_NAMESPACE::ScalableTag<T>;
  using Vector = hwy::HWY_NAMESPACE::Vec<Tag>;

  HWY_INLINE LanesOf() = default;
  HWY_INLINE explicit LanesOf(Vector vector) : raw(vector) {}
  HWY_INLINE explicit LanesOf(T value) : raw(hwy::HWY_NAMESPACE::Set(Tag(), value)) {}

  // For the drivers, not for formulas.
  static constexpr bool kIsVector = true;
  static HWY_INLINE int64_t Width() { return hwy::HWY_NAMESPACE::Lanes(Tag()); }
  static HWY_INLINE LanesOf Load(const T* from) {
    return LanesOf(hwy::HWY_NAMESPACE::LoadU(Tag(), from));
  }
  HWY_INLINE void Store(T* to) const { hwy::HWY_NAMESPACE::StoreU(raw, Tag(), to); }
  // Past the caches. `to` is aligned to the vector; hwy::FlushStream() makes it visible to others.
  HWY_INLINE void Stream(T* to) const { hwy::HWY_NAMESPACE::Stream(raw, Tag(), to); }

  Vector raw;
};
using Lanes = LanesOf<float>;
using Lanes64 = LanesOf<double>;

template <typename T>
struct LanesMask {
  hwy::HWY_NAMESPACE::Mask<typename LanesOf<T>::Tag> raw;
};

template <typename T>
HWY_INLINE LanesOf<T> operator+(LanesOf<T> a, LanesOf<T> b) {
  return LanesOf<T>(hwy::HWY_NAMESPACE::Add(a.raw, b.raw));
}
template <typename T>
HWY_INLINE LanesOf<T> operator-(LanesOf<T> a, LanesOf<T> b) {
  return LanesOf<T>(hwy::HWY_NAMESPACE::Sub(a.raw, b.raw));
}
template <typename T>
HWY_INLINE LanesOf<T> operator*(LanesOf<T> a, LanesOf<T> b) {
  return LanesOf<T>(hwy::HWY_NAMESPACE::Mul(a.raw, b.raw));
}
template <typename T>
HWY_INLINE LanesOf<T> operator/(LanesOf<T> a, LanesOf<T> b) {
  return LanesOf<T>(hwy::HWY_NAMESPACE::Div(a.raw, b.raw));
}
template <typename T>
HWY_INLINE LanesMask<T> operator>(LanesOf<T> a, LanesOf<T> b) {
  return LanesMask<T>{hwy::HWY_NAMESPACE::Gt(a.raw, b.raw)};
}
template <typename T>
HWY_INLINE LanesMask<T> operator==(LanesOf<T> a, LanesOf<T> b) {
  return LanesMask<T>{hwy::HWY_NAMESPACE::Eq(a.raw, b.raw)};
}
template <typename T>
HWY_INLINE LanesOf<T> Sqrt(LanesOf<T> a) {
  return LanesOf<T>(hwy::HWY_NAMESPACE::Sqrt(a.raw));
}
template <typename T>
HWY_INLINE LanesOf<T> RootOver(LanesOf<T> a, LanesOf<T> divisor) {
  const LanesOf<T> root = Sqrt(a);
#if HWY_NATIVE_FMA
  // With the nearest number to the divisor's inverse, a product and its remainder, which is exact,
  // give the quotient to the last bit (Brisebarre, Muller, Raina, "Accelerating correctly rounded
  // floating-point division when the divisor is known in advance", 2004). A compiler takes the
  // inverse out of a loop. Infinity has no remainder.
  const LanesOf<T> inverse = LanesOf<T>(T{1}) / divisor;
  const LanesOf<T> about = root * inverse;
  const auto rest = hwy::HWY_NAMESPACE::NegMulAdd(about.raw, divisor.raw, root.raw);
  const LanesOf<T> nearest(hwy::HWY_NAMESPACE::MulAdd(rest, inverse.raw, about.raw));
  return Select(LanesOf<T>(hwy::HighestValue<T>()) > about, nearest, about);
#else
  return root / divisor;
#endif
}
template <typename T>
HWY_INLINE LanesOf<T> Abs(LanesOf<T> a) {
  return LanesOf<T>(hwy::HWY_NAMESPACE::Abs(a.raw));
}
template <typename T>
HWY_INLINE LanesOf<T> Select(LanesMask<T> mask, LanesOf<T> yes, LanesOf<T> no) {
  return LanesOf<T>(hwy::HWY_NAMESPACE::IfThenElse(mask.raw, yes.raw, no.raw));
}

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
