// Vectors of float32 to companded codes and back. Compiled once for every instruction set.
#if defined(OPTSHARD_COMMON_SIMD_COMPANDED_CODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_COMMON_SIMD_COMPANDED_CODE_INL_H_
#undef OPTSHARD_COMMON_SIMD_COMPANDED_CODE_INL_H_
#else
#define OPTSHARD_COMMON_SIMD_COMPANDED_CODE_INL_H_
#endif

#include <cstdint>

#include "common/simd/rounded-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {

namespace companded_internal {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Ints = hn::RebindToSigned<Floats>;
using Vector = hn::Vec<Floats>;

HWY_INLINE Vector Const(float value) { return hn::Set(Floats(), value); }

}  // namespace companded_internal

// Each has what a block's scale is made of, one number for the block, and a byte an element.
struct CompandedAverage {
  using Vector = companded_internal::Vector;
  using Bytes = companded_internal::hn::Rebind<int8_t, companded_internal::Ints>;

  // Of the largest absolute value.
  static HWY_INLINE Vector ScaleOf(Vector largest) { return largest; }
  // What Encode takes in place of the scale.
  static HWY_INLINE Vector Divisor(Vector scale) { return scale; }

  static HWY_INLINE void Encode(Vector value, Vector scale, uint8_t* codes) {
    namespace hn = companded_internal::hn;
    using companded_internal::Const;
    const Vector companded = hn::Mul(hn::Div(value, hn::Add(scale, hn::Abs(value))), Const(254));
    const Vector clamped = hn::Min(hn::Max(companded, Const(-127)), Const(127));
    hn::StoreU(hn::DemoteTo(Bytes(), Rounded(clamped)), Bytes(), reinterpret_cast<int8_t*>(codes));
  }
  static HWY_INLINE Vector Decode(const uint8_t* codes, Vector scale) {
    namespace hn = companded_internal::hn;
    const auto bytes = hn::LoadU(Bytes(), reinterpret_cast<const int8_t*>(codes));
    const Vector code = hn::ConvertTo(companded_internal::Floats(),
                                      hn::PromoteTo(companded_internal::Ints(), bytes));
    return hn::Mul(hn::Div(code, hn::Sub(companded_internal::Const(254), hn::Abs(code))), scale);
  }
};

struct CompandedSquare {
  using Vector = companded_internal::Vector;
  using Bytes = companded_internal::hn::Rebind<uint8_t, companded_internal::Ints>;

  static HWY_INLINE Vector ScaleOf(Vector largest) { return companded_internal::hn::Sqrt(largest); }
  static HWY_INLINE Vector Divisor(Vector scale) {
    return companded_internal::hn::Div(companded_internal::Const(255), scale);
  }

  static HWY_INLINE void Encode(Vector value, Vector parts_per_one, uint8_t* codes) {
    namespace hn = companded_internal::hn;
    using companded_internal::Const;
    const Vector root = hn::Sqrt(hn::Max(value, Const(0)));
    const Vector clamped = hn::Min(hn::Mul(root, parts_per_one), Const(255));
    hn::StoreU(hn::DemoteTo(Bytes(), Rounded(clamped)), Bytes(), codes);
  }
  static HWY_INLINE Vector Decode(const uint8_t* codes, Vector scale) {
    namespace hn = companded_internal::hn;
    const auto bytes = hn::LoadU(Bytes(), codes);
    const Vector code = hn::ConvertTo(companded_internal::Floats(),
                                      hn::PromoteTo(companded_internal::Ints(), bytes));
    // 255 times the float next to 1/255 is 1.
    const Vector root = hn::Mul(hn::Mul(code, companded_internal::Const(1.0f / 255)), scale);
    return hn::Mul(root, root);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
