#include "server/shard/inspection/slot_statistics.h"

#include <algorithm>
#include <cmath>

#include "common/buffer.h"
#include "common/simd/norms.h"

namespace optshard {
namespace {

constexpr int64_t kSums = 16;

double SumOfBlock(absl::Span<const double> values) {
  double sums[kSums] = {};
  const auto elements = static_cast<int64_t>(values.size());
  const double* value = values.data();
  int64_t i = 0;
  for (; i + kSums <= elements; i += kSums) {
    for (int64_t k = 0; k < kSums; ++k) sums[k] += value[i + k];
  }
  for (; i < elements; ++i) sums[i % kSums] += value[i];
  for (int64_t distance = kSums / 2; distance > 0; distance /= 2) {
    for (int64_t k = 0; k < distance; ++k) sums[k] += sums[k + distance];
  }
  return sums[0];
}

}  // namespace

double SlotStatistics::mean() const {
  return finite() == 0 ? 0 : sum / static_cast<double>(finite());
}

double SlotStatistics::norm() const { return std::sqrt(sum_of_squares); }

void SlotStatistics::Add(absl::Span<double> values) {
  SlotStatistics added;
  added.elements = static_cast<int64_t>(values.size());
  bool any = false;
  for (double& value : values) {
    if (!std::isfinite(value)) {
      ++added.non_finite;
      value = 0;
      continue;
    }
    added.zeros += value == 0 ? 1 : 0;
    added.min = any ? std::min(added.min, value) : value;
    added.max = any ? std::max(added.max, value) : value;
    any = true;
  }
  Add(added);
  // From the sums so far on, block by block: it does not matter how a slot is cut into parts.
  for (size_t begin = 0; begin < values.size(); begin += kNormBlock) {
    sum += SumOfBlock(values.subspan(begin, kNormBlock));
  }
  sum_of_squares =
      SumOfSquares(ConstBuffer(values.data(), DType::kFloat64), added.elements, sum_of_squares);
}

void SlotStatistics::Add(const SlotStatistics& next) {
  if (next.finite() > 0) {
    min = finite() > 0 ? std::min(min, next.min) : next.min;
    max = finite() > 0 ? std::max(max, next.max) : next.max;
  }
  elements += next.elements;
  zeros += next.zeros;
  non_finite += next.non_finite;
  sum += next.sum;
  sum_of_squares += next.sum_of_squares;
}

}  // namespace optshard
