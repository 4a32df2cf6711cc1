// What rounding takes from a 16-bit parameter, kept in 8 bits: with them it is a master.
#ifndef OPTSHARD_COMMON_PARAMETER_CORRECTION_H_
#define OPTSHARD_COMMON_PARAMETER_CORRECTION_H_

#include <cstdint>

#include "common/dtype.h"

namespace optshard {

// A correction of c, from -127 to 127, adds c / 127 of half the distance from the parameter to the
// next number further from 0, as FlashOptim's (arXiv 2602.23349, master weights of 24 bits). A
// parameter that is not finite has the correction 0 and stays as it is.
//
// `half` is kFloat16 or kBFloat16. The same bits by every instruction set. Arrays need only natural
// alignment and do not overlap. The default floating-point mode must be set
// (common/default_floating_point.h). Thread-safe.

// The corrected parameters.
void Corrected(DType half, const void* parameters, const int8_t* corrections, int64_t elements,
               float* to);

// Of parameters that are `values` rounded to nearest: the nearest correction.
void CorrectionsOf(DType half, const float* values, const void* parameters, int64_t elements,
                   int8_t* to);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_PARAMETER_CORRECTION_H_
