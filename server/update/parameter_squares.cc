#include "server/update/parameter_squares.h"

#include <algorithm>
#include <cstdint>

#include "common/parameter_correction.h"
#include "common/simd/norms.h"

namespace optshard {

double SumOfParameterSquares(const SpanUpdate& span, double sum) {
  if (span.master) return SumOfSquares(span.master, span.elements, sum);
  if (span.correction == nullptr) return SumOfSquares(span.parameter, span.elements, sum);
  for (int64_t begin = 0; begin < span.elements; begin += kNormBlock) {
    float values[kNormBlock];
    const int64_t count = std::min(kNormBlock, span.elements - begin);
    Corrected(span.parameter.dtype(), span.parameter.From(begin).data(), span.correction + begin,
              count, values);
    sum = SumOfSquares(values, count, sum);
  }
  return sum;
}

}  // namespace optshard
