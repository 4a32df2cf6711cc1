// The sum of the squares of a parameter, for rules that take its norm.
#ifndef OPTSHARD_SERVER_UPDATE_PARAMETER_SQUARES_H_
#define OPTSHARD_SERVER_UPDATE_PARAMETER_SQUARES_H_

#include "server/update/update_rule.h"

namespace optshard {

// SumOfSquares (common/simd/norms.h) of the values that the span's update begins with: the
// parameter, corrected where it has a correction, or its master. Wants the default floating-point
// mode. Thread-safe.
double SumOfParameterSquares(const SpanUpdate& span, double sum);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_PARAMETER_SQUARES_H_
