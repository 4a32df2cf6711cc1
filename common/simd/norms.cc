#include "common/simd/norms.h"

#include "common/dtype_conversion.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/simd/norms.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace optshard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kSums = 16;
using Tag = hn::CappedTag<double, kSums>;
constexpr int kWidth = static_cast<int>(hn::MaxLanes(Tag()));

hn::Vec<Tag> LoadAsDouble(const double* from) { return hn::LoadU(Tag(), from); }
hn::Vec<Tag> LoadAsDouble(const float* from) {
  return hn::PromoteTo(Tag(), hn::LoadU(hn::Rebind<float, Tag>(), from));
}

template <typename T>
double SumOfBlock(const T* values, int64_t elements) {
  hn::Vec<Tag> vectors[kSums / kWidth];
  for (hn::Vec<Tag>& vector : vectors) vector = hn::Zero(Tag());
  int64_t i = 0;
  for (; i + kSums <= elements; i += kSums) {
    for (int64_t k = 0; k < kSums / kWidth; ++k) {
      const hn::Vec<Tag> value = LoadAsDouble(values + i + k * kWidth);
      vectors[k] = hn::Add(vectors[k], hn::Mul(value, value));
    }
  }
  double sums[kSums];
  for (int64_t k = 0; k < kSums / kWidth; ++k) {
    hn::StoreU(vectors[k], Tag(), sums + k * kWidth);
  }
  for (; i < elements; ++i) {
    const double value = values[i];
    sums[i % kSums] += value * value;
  }
  for (int distance = kSums / 2; distance > 0; distance /= 2) {
    for (int k = 0; k < distance; ++k) sums[k] += sums[k + distance];
  }
  return sums[0];
}

double SumOfFloats(const float* values, int64_t elements) { return SumOfBlock(values, elements); }
double SumOfDoubles(const double* values, int64_t elements) { return SumOfBlock(values, elements); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace optshard {
namespace {

HWY_EXPORT(SumOfFloats);
HWY_EXPORT(SumOfDoubles);

double SumOfOneBlock(ConstBuffer values, int64_t elements) {
  if (values.dtype() == DType::kFloat64) {
    return HWY_DYNAMIC_DISPATCH(SumOfDoubles)(values.As<double>(), elements);
  }
  if (values.dtype() == DType::kFloat32) {
    return HWY_DYNAMIC_DISPATCH(SumOfFloats)(values.As<float>(), elements);
  }
  float wide[kNormBlock];
  Widen(values.dtype(), values.data(), elements, wide);
  return HWY_DYNAMIC_DISPATCH(SumOfFloats)(wide, elements);
}

}  // namespace

double SumOfSquares(ConstBuffer values, int64_t elements, double sum) {
  for (int64_t begin = 0; begin < elements; begin += kNormBlock) {
    const int64_t count = elements - begin < kNormBlock ? elements - begin : kNormBlock;
    sum += SumOfOneBlock(values.From(begin), count);
  }
  return sum;
}

}  // namespace optshard
#endif  // HWY_ONCE
