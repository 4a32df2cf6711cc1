// Vectors of float32 to companded codes and back. Compiled once for every instruction set.
#if defined(OPTSHARD_COMMON_SIMD_COMPANDED_CODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPTSHARD_COMMON_SIMD_COMPANDED_CODE_INL_H_
#undef OPTSHARD_COMMON_SIMD_COMPANDED_CODE_INL_H_
#else
#define OPTSHARD_COMMON_SIMD_COMPANDED_CODE_INL_H_
#endif

#include <cstdint>

#include "common/simd/code_places-inl.h"
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

// Whether the CPU has estimates of inverses, with at most 1.5 * 2^-12 of them as error (those of
// AVX-512: 2^-14), and fused steps to better them.
#if HWY_NATIVE_FMA && HWY_ARCH_X86
constexpr bool kHasEstimates = true;
#else
constexpr bool kHasEstimates = false;
#endif

}  // namespace companded_internal

// Each has what a block's scale is made of, one number for the block, and a byte an element.
//
// Divisions and roots, of which a CPU does one at a time, are what coding would wait for. About()
// is made of estimates and good to kDoubt: a sum for CodesOfPlaces. Where IsInDoubt says so of it,
// Encode decides. Each error below is in units of 2^-24 of the place.
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

  // Errors: the bettered estimate 2.25 and its rounding 1, the factor 1; of the exact place 2. That
  // is 127 * 6.25 * 2^-24, and the sum's rounding 2^-15: 0.64 * 2^-13.
  static constexpr float kDoubt = 0x1p-13f;
  // Of values up to 2^60 and a scale as it is kept, not 0.
  static HWY_INLINE Vector About(Vector value, Vector scale) {
    namespace hn = companded_internal::hn;
    using companded_internal::Const;
    constexpr float kBase = code_places::kOffset + kDoubt;
    const Vector sum = hn::Add(scale, hn::Abs(value));
    const Vector estimate = hn::ApproximateReciprocal(sum);
    const Vector error = hn::NegMulAdd(sum, estimate, Const(1));
    const Vector inverse = hn::MulAdd(estimate, error, estimate);
    const Vector place = hn::MulAdd(hn::Mul(value, Const(254)), inverse, Const(kBase));
    return hn::Min(hn::Max(place, Const(kBase - 127)), Const(kBase + 127));
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

  // Errors: the bettered estimate 3.375, the roundings of root, correction and product 2.5; of the
  // exact place 2. That is 255 * 7.9 * 2^-24, and the sum's rounding 2^-15: 0.62 * 2^-12.
  static constexpr float kDoubt = 0x1p-12f;
  // Of values up to 2^60. The least is one whose estimate is normal, and whose code is 0.
  static HWY_INLINE Vector About(Vector value, Vector parts_per_one) {
    namespace hn = companded_internal::hn;
    using companded_internal::Const;
    constexpr float kBase = code_places::kOffset + kDoubt;
    const Vector square = hn::Max(value, Const(0x1p-100f));
    const Vector estimate = hn::ApproximateReciprocalSqrt(square);
    const Vector root = hn::Mul(square, estimate);
    const Vector error = hn::NegMulAdd(root, estimate, Const(1));
    const Vector correction = hn::MulAdd(error, Const(0.5f), Const(1));
    const Vector place = hn::MulAdd(hn::Mul(root, parts_per_one), correction, Const(kBase));
    return hn::Min(place, Const(kBase + 255));
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
