// One element as a formula sees it: the plain scalar instantiation, the meaning of every other one.
//
// A type of its own rather than float, so that a formula can use nothing but what is here: no
// silent conversion to double, no library function whose last bit depends on the machine.
#ifndef OPTSHARD_COMMON_SIMD_SCALAR_H_
#define OPTSHARD_COMMON_SIMD_SCALAR_H_

#ifdef __FAST_MATH__
#error "Update rules need IEEE arithmetic: build without -ffast-math (docs/numerics.md)."
#endif

#include <cstdint>

#include "common/host_device.h"

namespace optshard {

template <typename T>
struct ScalarOf {
  using Number = T;

  ScalarOf() = default;
  OPTSHARD_HOST_DEVICE explicit ScalarOf(T value) : raw(value) {}

  // For the drivers, not for formulas.
  static constexpr bool kIsVector = false;
  OPTSHARD_HOST_DEVICE static constexpr int64_t Width() { return 1; }
  OPTSHARD_HOST_DEVICE static ScalarOf Load(const T* from) { return ScalarOf(*from); }
  OPTSHARD_HOST_DEVICE void Store(T* to) const { *to = raw; }

  T raw;
};
using Scalar = ScalarOf<float>;
using Scalar64 = ScalarOf<double>;

template <typename T>
OPTSHARD_HOST_DEVICE ScalarOf<T> operator+(ScalarOf<T> a, ScalarOf<T> b) {
  return ScalarOf<T>(a.raw + b.raw);
}
template <typename T>
OPTSHARD_HOST_DEVICE ScalarOf<T> operator-(ScalarOf<T> a, ScalarOf<T> b) {
  return ScalarOf<T>(a.raw - b.raw);
}
template <typename T>
OPTSHARD_HOST_DEVICE ScalarOf<T> operator*(ScalarOf<T> a, ScalarOf<T> b) {
  return ScalarOf<T>(a.raw * b.raw);
}
template <typename T>
OPTSHARD_HOST_DEVICE ScalarOf<T> operator/(ScalarOf<T> a, ScalarOf<T> b) {
  return ScalarOf<T>(a.raw / b.raw);
}
template <typename T>
OPTSHARD_HOST_DEVICE bool operator>(ScalarOf<T> a, ScalarOf<T> b) {
  return a.raw > b.raw;
}
template <typename T>
OPTSHARD_HOST_DEVICE bool operator==(ScalarOf<T> a, ScalarOf<T> b) {
  return a.raw == b.raw;
}
OPTSHARD_HOST_DEVICE inline Scalar Sqrt(Scalar a) { return Scalar(__builtin_sqrtf(a.raw)); }
OPTSHARD_HOST_DEVICE inline Scalar64 Sqrt(Scalar64 a) { return Scalar64(__builtin_sqrt(a.raw)); }
// Sqrt(a) / divisor: the root is rounded, and then the quotient. The divisor is the same in a whole
// loop, positive, and nowhere near the largest or the smallest numbers: vectors then need no
// division.
template <typename T>
OPTSHARD_HOST_DEVICE ScalarOf<T> RootOver(ScalarOf<T> a, ScalarOf<T> divisor) {
  return Sqrt(a) / divisor;
}
OPTSHARD_HOST_DEVICE inline Scalar Abs(Scalar a) { return Scalar(__builtin_fabsf(a.raw)); }
OPTSHARD_HOST_DEVICE inline Scalar64 Abs(Scalar64 a) { return Scalar64(__builtin_fabs(a.raw)); }
template <typename T>
OPTSHARD_HOST_DEVICE ScalarOf<T> Select(bool mask, ScalarOf<T> yes, ScalarOf<T> no) {
  return mask ? yes : no;
}

}  // namespace optshard

#endif  // OPTSHARD_COMMON_SIMD_SCALAR_H_
