// Computes in the default floating-point mode, whatever mode the calling thread is in.
#ifndef OPTSHARD_COMMON_DEFAULT_FLOATING_POINT_H_
#define OPTSHARD_COMMON_DEFAULT_FLOATING_POINT_H_

#include <xmmintrin.h>

namespace optshard {

// While it lives, its thread rounds to nearest, keeps denormals and masks all exceptions. A trainer
// may have changed that for its thread (torch.set_flush_denormal), and threads inherit the mode of
// the one that starts them; the bits of a step must not depend on which thread computes it.
//
// On x86-64, floats are computed by SSE. Its control register is read in a few cycles, and written
// only where it differs. Bound to the thread that constructs it.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() : saved_(_mm_getcsr()) {
    if (differs()) _mm_setcsr(kDefault);
  }
  ~DefaultFloatingPoint() {
    if (differs()) _mm_setcsr(saved_);
  }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  static constexpr unsigned kDefault = 0x1f80;  // round to nearest, all exceptions masked
  static constexpr unsigned kRaised = 0x3f;     // which exceptions have been raised

  bool differs() const { return (saved_ & ~kRaised) != kDefault; }

  const unsigned saved_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DEFAULT_FLOATING_POINT_H_
