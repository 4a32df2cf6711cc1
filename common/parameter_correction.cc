#include "common/parameter_correction.h"

#include <cstring>
#include <string>

#include "common/fatal.h"
#include "common/half.h"
#include "common/simd/scalar.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/parameter_correction.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "common/simd/half-inl.h"
#include "common/simd/lanes-inl.h"
#include "common/simd/memory-inl.h"
#include "common/simd/rounded-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToSigned<Floats>;
using Bytes = hn::Rebind<int8_t, Words>;
using Vector = hn::Vec<Floats>;

// Half the distance to the next number, as a share of the power of two below a number; and the
// smallest power of two that is not a denormal.
template <class Half>
struct Spacing;
template <>
struct Spacing<BFloat16> {
  static constexpr float kHalfOfUnit = 0x1p-8f;
  static constexpr float kSmallest = 0x1p-126f;
};
template <>
struct Spacing<Float16> {
  static constexpr float kHalfOfUnit = 0x1p-11f;
  static constexpr float kSmallest = 0x1p-14f;
};

constexpr int32_t kInfinityBits = 0x7f800000;

// The power of two below the parameter's size: infinity of one that is not finite.
template <class Half>
HWY_INLINE Vector PowerOf(Vector parameter) {
  const auto exponent = hn::And(hn::BitCast(Words(), parameter), hn::Set(Words(), kInfinityBits));
  return hn::Max(hn::BitCast(Floats(), exponent), hn::Set(Floats(), Spacing<Half>::kSmallest));
}

HWY_INLINE auto BelowInfinity(Vector power) {
  return hn::Lt(power, hn::BitCast(Floats(), hn::Set(Words(), kInfinityBits)));
}

// Both do whole vectors.

template <class Half>
int64_t CorrectedBy(const uint16_t* parameters, const int8_t* corrections, int64_t elements,
                    float* to) {
  int64_t i = 0;
  for (; i + Lanes::Width() <= elements; i += Lanes::Width()) {
    if (BeginsLine<Lanes>(i)) FetchAhead(parameters + i);
    if (i % kLineBytes == 0) FetchAhead(corrections + i);
    Lanes parameter;
    LoadHalf<Half>(parameters + i, parameter);
    const Vector power = PowerOf<Half>(parameter.raw);
    const Vector correction =
        hn::ConvertTo(Floats(), hn::PromoteTo(Words(), hn::LoadU(Bytes(), corrections + i)));
    const Vector share = hn::Div(correction, hn::Set(Floats(), 127.0f));
    const Vector half = hn::Mul(power, hn::Set(Floats(), Spacing<Half>::kHalfOfUnit));
    const Vector sum = hn::Add(parameter.raw, hn::Mul(share, half));
    Lanes(hn::IfThenElse(BelowInfinity(power), sum, parameter.raw)).Store(to + i);
  }
  return i;
}

template <class Half>
int64_t CorrectionsBy(const float* values, const uint16_t* parameters, int64_t elements,
                      int8_t* to) {
  int64_t i = 0;
  for (; i + Lanes::Width() <= elements; i += Lanes::Width()) {
    Lanes parameter;
    LoadHalf<Half>(parameters + i, parameter);
    const Vector power = PowerOf<Half>(parameter.raw);
    const Vector error = hn::Sub(hn::LoadU(Floats(), values + i), parameter.raw);
    // All of this is exact: powers of two, and an error with few digits.
    const Vector grown = hn::Mul(error, hn::Set(Floats(), 1 / Spacing<Half>::kHalfOfUnit));
    const Vector share = hn::IfThenElseZero(BelowInfinity(power), hn::Div(grown, power));
    const Vector one = hn::Set(Floats(), 1.0f);
    const Vector clamped = hn::Min(hn::Max(share, hn::Neg(one)), one);
    const auto rounded = Rounded(hn::Mul(clamped, hn::Set(Floats(), 127.0f)));
    hn::StoreU(hn::DemoteTo(Bytes(), rounded), Bytes(), to + i);
  }
  return i;
}

// What is left over is done as a whole vector, too.
constexpr int64_t kMost = 64;

template <class Half>
void CorrectedAll(const uint16_t* parameters, const int8_t* corrections, int64_t elements,
                  float* to) {
  const int64_t done = CorrectedBy<Half>(parameters, corrections, elements, to);
  const int64_t rest = elements - done;
  if (rest == 0) return;
  uint16_t last_parameters[kMost] = {};
  int8_t last_corrections[kMost] = {};
  float last[kMost];
  std::memcpy(last_parameters, parameters + done, rest * sizeof(uint16_t));
  std::memcpy(last_corrections, corrections + done, rest);
  CorrectedBy<Half>(last_parameters, last_corrections, kMost, last);
  std::memcpy(to + done, last, rest * sizeof(float));
}

template <class Half>
void CorrectionsAll(const float* values, const uint16_t* parameters, int64_t elements, int8_t* to) {
  const int64_t done = CorrectionsBy<Half>(values, parameters, elements, to);
  const int64_t rest = elements - done;
  if (rest == 0) return;
  float last_values[kMost] = {};
  uint16_t last_parameters[kMost] = {};
  int8_t last[kMost];
  std::memcpy(last_values, values + done, rest * sizeof(float));
  std::memcpy(last_parameters, parameters + done, rest * sizeof(uint16_t));
  CorrectionsBy<Half>(last_values, last_parameters, kMost, last);
  std::memcpy(to + done, last, rest);
}

void CorrectedBFloat16(const uint16_t* parameters, const int8_t* corrections, int64_t elements,
                       float* to) {
  CorrectedAll<BFloat16>(parameters, corrections, elements, to);
}
void CorrectedFloat16(const uint16_t* parameters, const int8_t* corrections, int64_t elements,
                      float* to) {
  CorrectedAll<Float16>(parameters, corrections, elements, to);
}
void CorrectionsOfBFloat16(const float* values, const uint16_t* parameters, int64_t elements,
                           int8_t* to) {
  CorrectionsAll<BFloat16>(values, parameters, elements, to);
}
void CorrectionsOfFloat16(const float* values, const uint16_t* parameters, int64_t elements,
                          int8_t* to) {
  CorrectionsAll<Float16>(values, parameters, elements, to);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace optshard {
namespace {

HWY_EXPORT(CorrectedBFloat16);
HWY_EXPORT(CorrectedFloat16);
HWY_EXPORT(CorrectionsOfBFloat16);
HWY_EXPORT(CorrectionsOfFloat16);

[[noreturn]] void NotHalf(DType dtype) {
  Fatal("%s is not a 16-bit type", std::string(NameOf(dtype)));
}

}  // namespace

void Corrected(DType half, const void* parameters, const int8_t* corrections, int64_t elements,
               float* to) {
  const auto* const halves = static_cast<const uint16_t*>(parameters);
  switch (half) {
    case DType::kBFloat16:
      return HWY_DYNAMIC_DISPATCH(CorrectedBFloat16)(halves, corrections, elements, to);
    case DType::kFloat16:
      return HWY_DYNAMIC_DISPATCH(CorrectedFloat16)(halves, corrections, elements, to);
    default:
      NotHalf(half);
  }
}

void CorrectionsOf(DType half, const float* values, const void* parameters, int64_t elements,
                   int8_t* to) {
  const auto* const halves = static_cast<const uint16_t*>(parameters);
  switch (half) {
    case DType::kBFloat16:
      return HWY_DYNAMIC_DISPATCH(CorrectionsOfBFloat16)(values, halves, elements, to);
    case DType::kFloat16:
      return HWY_DYNAMIC_DISPATCH(CorrectionsOfFloat16)(values, halves, elements, to);
    default:
      NotHalf(half);
  }
}

}  // namespace optshard
#endif  // HWY_ONCE
