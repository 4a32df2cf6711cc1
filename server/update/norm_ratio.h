// Step sizes that follow from norms.
#ifndef OPTSHARD_SERVER_UPDATE_NORM_RATIO_H_
#define OPTSHARD_SERVER_UPDATE_NORM_RATIO_H_

#include "common/host_device.h"

namespace optshard {

// Of LAMB (https://arxiv.org/abs/1904.00962, algorithm 2), with the sign of a descent: -lr times
// the ratio of the norms of parameter and direction, of which the squares are given. Where
// `is_scaled` is 0, or one of the norms is, there is no ratio, and the step is lr times the
// direction.
OPTSHARD_HOST_DEVICE inline double MinusNormScaledLr(double lr, double is_scaled,
                                                     double parameter_squares,
                                                     double direction_squares) {
  double ratio = 1;
  if (is_scaled != 0 && parameter_squares != 0 && direction_squares != 0) {
    ratio = __builtin_sqrt(parameter_squares) / __builtin_sqrt(direction_squares);
  }
  return -(lr * ratio);
}

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_NORM_RATIO_H_
