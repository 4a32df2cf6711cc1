// What formulas are being compiled for: an instruction set of CPUs, or GPUs. No include guard: the
// instruction set changes within a translation unit.
#undef OPTSHARD_BEFORE_TARGET
#undef OPTSHARD_AFTER_TARGET
#undef OPTSHARD_TARGET
#undef OPTSHARD_FORMULA
#undef OPTSHARD_CONSTEXPR_FORMULA

#ifdef OPTSHARD_KERNELS  // by the build rule of kernels
#include "common/host_device.h"
#define OPTSHARD_BEFORE_TARGET() static_assert(true, "a semicolon follows")
#define OPTSHARD_AFTER_TARGET() static_assert(true, "a semicolon follows")
#define OPTSHARD_TARGET kernels
#define OPTSHARD_FORMULA OPTSHARD_HOST_DEVICE inline
#define OPTSHARD_CONSTEXPR_FORMULA OPTSHARD_HOST_DEVICE constexpr
#else
#include "hwy/highway.h"
#define OPTSHARD_BEFORE_TARGET() HWY_BEFORE_NAMESPACE()
#define OPTSHARD_AFTER_TARGET() HWY_AFTER_NAMESPACE()
#define OPTSHARD_TARGET HWY_NAMESPACE
#define OPTSHARD_FORMULA HWY_INLINE
#define OPTSHARD_CONSTEXPR_FORMULA constexpr
#endif
