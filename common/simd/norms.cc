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

// With kColumns, each square is also added to its element's entry in `columns`.
template <bool kColumns, typename T>
HWY_INLINE double SumOfBlock(const T* values, int64_t elements, double* columns = nullptr) {
  hn::Vec<Tag> vectors[kSums / kWidth];
  for (hn::Vec<Tag>& vector : vectors) vector = hn::Zero(Tag());
  int64_t i = 0;
  for (; i + kSums <= elements; i += kSums) {
    for (int64_t k = 0; k < kSums / kWidth; ++k) {
      const hn::Vec<Tag> value = LoadAsDouble(values + i + k * kWidth);
      const hn::Vec<Tag> square = hn::Mul(value, value);
      vectors[k] = hn::Add(vectors[k], square);
      if constexpr (kColumns) {
        double* const column = columns + i + k * kWidth;
        hn::StoreU(hn::Add(hn::LoadU(Tag(), column), square), Tag(), column);
      }
    }
  }
  double sums[kSums];
  for (int64_t k = 0; k < kSums / kWidth; ++k) {
    hn::StoreU(vectors[k], Tag(), sums + k * kWidth);
  }
  for (; i < elements; ++i) {
    const double value = values[i];
    sums[i % kSums] += value * value;
    if constexpr (kColumns) columns[i] += value * value;
  }
  // Sums beyond the elements are +0, which adds nothing.
  int distance = kSums / 2;
  while (distance > 0 && distance >= elements) distance /= 2;
  for (; distance > 0; distance /= 2) {
    for (int k = 0; k < distance; ++k) sums[k] += sums[k + distance];
  }
  return sums[0];
}

double SumOfFloats(const float* values, int64_t elements) {
  return SumOfBlock<false>(values, elements);
}
double SumOfDoubles(const double* values, int64_t elements) {
  return SumOfBlock<false>(values, elements);
}

template <typename T>
HWY_INLINE void SumRowsAndColumns(const T* values, const MatrixExtent& extent, double* row_sums,
                                  double* column_sums) {
  int64_t row_of_matrix = 0;
  for (int64_t row = 0; row < extent.rows; ++row) {
    double sum = 0;
    for (int64_t begin = 0; begin < extent.columns; begin += kNormBlock) {
      const int64_t rest = extent.columns - begin;
      sum += SumOfBlock<true>(values + begin, rest < kNormBlock ? rest : kNormBlock,
                              column_sums + begin);
    }
    row_sums[row] = sum;
    values += extent.columns;
    if (++row_of_matrix == extent.matrix_rows) {
      row_of_matrix = 0;
      column_sums += extent.columns;
    }
  }
}

void SumFloatMatrices(const float* values, const MatrixExtent& extent, double* row_sums,
                      double* column_sums) {
  SumRowsAndColumns(values, extent, row_sums, column_sums);
}
void SumDoubleMatrices(const double* values, const MatrixExtent& extent, double* row_sums,
                       double* column_sums) {
  SumRowsAndColumns(values, extent, row_sums, column_sums);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace optshard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace optshard {
namespace {

HWY_EXPORT(SumOfFloats);
HWY_EXPORT(SumOfDoubles);
HWY_EXPORT(SumFloatMatrices);
HWY_EXPORT(SumDoubleMatrices);

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

void SumSquaresByRowAndColumn(const float* values, const MatrixExtent& extent, double* row_sums,
                              double* column_sums) {
  HWY_DYNAMIC_DISPATCH(SumFloatMatrices)(values, extent, row_sums, column_sums);
}

void SumSquaresByRowAndColumn(const double* values, const MatrixExtent& extent, double* row_sums,
                              double* column_sums) {
  HWY_DYNAMIC_DISPATCH(SumDoubleMatrices)(values, extent, row_sums, column_sums);
}

}  // namespace optshard
#endif  // HWY_ONCE
