// One element as a formula sees it: the plain scalar instantiation, the meaning of every other one.
//
// A type of its own rather than float, so that a formula can use nothing but what is here: no
// silent conversion to double, no library function whose last bit depends on the machine.
#ifndef OPTSHARD_SERVER_UPDATE_SCALAR_H_
#define OPTSHARD_SERVER_UPDATE_SCALAR_H_

#ifdef __FAST_MATH__
#error "Update rules need IEEE arithmetic: build without -ffast-math (docs/numerics.md)."
#endif

#include <cstdint>

namespace optshard {

struct Scalar {
  Scalar() = default;
  explicit Scalar(float value) : raw(value) {}

  // For the drivers, not for formulas.
  static constexpr bool kIsVector = false;
  static constexpr int64_t Width() { return 1; }
  static Scalar Load(const float* from) { return Scalar(*from); }
  void Store(float* to) const { *to = raw; }

  float raw;
};

inline Scalar operator+(Scalar a, Scalar b) { return Scalar(a.raw + b.raw); }
inline Scalar operator-(Scalar a, Scalar b) { return Scalar(a.raw - b.raw); }
inline Scalar operator*(Scalar a, Scalar b) { return Scalar(a.raw * b.raw); }
inline Scalar operator/(Scalar a, Scalar b) { return Scalar(a.raw / b.raw); }
inline bool operator>(Scalar a, Scalar b) { return a.raw > b.raw; }
inline bool operator==(Scalar a, Scalar b) { return a.raw == b.raw; }
inline Scalar Sqrt(Scalar a) { return Scalar(__builtin_sqrtf(a.raw)); }
inline Scalar Abs(Scalar a) { return Scalar(__builtin_fabsf(a.raw)); }
inline Scalar Select(bool mask, Scalar yes, Scalar no) { return mask ? yes : no; }

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_SCALAR_H_
