// Sums and products that cannot overflow unnoticed. For numbers that come from a client.
#ifndef OPTSHARD_COMMON_CHECKED_MATH_H_
#define OPTSHARD_COMMON_CHECKED_MATH_H_

#include <limits>

#include "absl/types/optional.h"

namespace optshard {

// a + b, or nothing where T cannot hold it.
template <typename T>
absl::optional<T> CheckedAdd(T a, T b) {
  T sum;
  if (__builtin_add_overflow(a, b, &sum)) return absl::nullopt;
  return sum;
}

// The functions below take numbers that are not negative. Where T cannot hold the result they
// return the largest T.

template <typename T>
T SaturatingAdd(T a, T b) {
  T sum;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<T>::max() : sum;
}

template <typename T>
T SaturatingMultiply(T a, T b) {
  T product;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<T>::max() : product;
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CHECKED_MATH_H_
