// A vector of elements of the instruction set that is being compiled for. Each operation does to
// each lane what scalar.h does to its one number. Compiled once for every instruction set.
#if defined(OPTSHARD_SERVER_UPDATE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_SERVER_UPDATE_LANES_INL_H_
#undef OPTSHARD_SERVER_UPDATE_LANES_INL_H_
#else
#define OPTSHARD_SERVER_UPDATE_LANES_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {

struct Lanes {
  using Tag = hwy::HWY_NAMESPACE::ScalableTag<float>;
  using Vector = hwy::HWY_NAMESPACE::Vec<Tag>;

  HWY_INLINE Lanes() = default;
  HWY_INLINE explicit Lanes(Vector vector) : raw(vector) {}
  HWY_INLINE explicit Lanes(float value) : raw(hwy::HWY_NAMESPACE::Set(Tag(), value)) {}

  // For the drivers, not for formulas.
  static constexpr bool kIsVector = true;
  static HWY_INLINE int64_t Width() { return hwy::HWY_NAMESPACE::Lanes(Tag()); }
  static HWY_INLINE Lanes Load(const float* from) {
    return Lanes(hwy::HWY_NAMESPACE::LoadU(Tag(), from));
  }
  HWY_INLINE void Store(float* to) const { hwy::HWY_NAMESPACE::StoreU(raw, Tag(), to); }
  // Past the caches. `to` is aligned to the vector; hwy::FlushStream() makes it visible to others.
  HWY_INLINE void Stream(float* to) const { hwy::HWY_NAMESPACE::Stream(raw, Tag(), to); }

  Vector raw;
};

struct LanesMask {
  hwy::HWY_NAMESPACE::Mask<Lanes::Tag> raw;
};

HWY_INLINE Lanes operator+(Lanes a, Lanes b) {
  return Lanes(hwy::HWY_NAMESPACE::Add(a.raw, b.raw));
}
HWY_INLINE Lanes operator-(Lanes a, Lanes b) {
  return Lanes(hwy::HWY_NAMESPACE::Sub(a.raw, b.raw));
}
HWY_INLINE Lanes operator*(Lanes a, Lanes b) {
  return Lanes(hwy::HWY_NAMESPACE::Mul(a.raw, b.raw));
}
HWY_INLINE Lanes operator/(Lanes a, Lanes b) {
  return Lanes(hwy::HWY_NAMESPACE::Div(a.raw, b.raw));
}
HWY_INLINE LanesMask operator>(Lanes a, Lanes b) {
  return LanesMask{hwy::HWY_NAMESPACE::Gt(a.raw, b.raw)};
}
HWY_INLINE LanesMask operator==(Lanes a, Lanes b) {
  return LanesMask{hwy::HWY_NAMESPACE::Eq(a.raw, b.raw)};
}
HWY_INLINE Lanes Sqrt(Lanes a) { return Lanes(hwy::HWY_NAMESPACE::Sqrt(a.raw)); }
HWY_INLINE Lanes Abs(Lanes a) { return Lanes(hwy::HWY_NAMESPACE::Abs(a.raw)); }
HWY_INLINE Lanes Select(LanesMask mask, Lanes yes, Lanes no) {
  return Lanes(hwy::HWY_NAMESPACE::IfThenElse(mask.raw, yes.raw, no.raw));
}

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
