// Arrays of the 16-bit types to float32 and back.
#ifndef OPTSHARD_COMMON_DTYPE_CONVERSION_H_
#define OPTSHARD_COMMON_DTYPE_CONVERSION_H_

#include <cstdint>

#include "common/dtype.h"

namespace optshard {

// Element by element what common/half.h does, with the best instructions of this CPU: the same bits
// on every one. `half` is kFloat16 or kBFloat16. Arrays need only natural alignment and do not
// overlap. The default floating-point mode must be set (common/default_floating_point.h).
// Thread-safe.
void Widen(DType half, const void* from, int64_t elements, float* to);
void Narrow(DType half, const float* from, int64_t elements, void* to);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_DTYPE_CONVERSION_H_
