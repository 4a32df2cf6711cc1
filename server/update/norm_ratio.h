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

// Of Adafactor as torch.optim has it
// (https://docs.pytorch.org/docs/2.11/generated/torch.optim.Adafactor.html), with the sign of a
// descent: -rho times the parameter's root mean square, second_eps at least, over what the update's
// is greater than `clip` by. Of both the squares of all elements are given.
OPTSHARD_HOST_DEVICE inline double MinusRelativeStep(double rho, double second_eps, double clip,
                                                     double elements, double parameter_squares,
                                                     double update_squares) {
  const double root = __builtin_sqrt(elements);
  const double parameter = __builtin_sqrt(parameter_squares) / root;
  const double size = second_eps < parameter ? parameter : second_eps;
  const double excess = __builtin_sqrt(update_squares) / (root * clip);
  return -(size * rho) / (1 < excess ? excess : 1);
}

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_NORM_RATIO_H_
