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

// Of Muon as torch.optim has it
// (https://docs.pytorch.org/docs/2.11/generated/torch.optim.Muon.html): the factor that a matrix is
// multiplied by before it is made orthogonal, of which the squares of all elements are given. What
// is divided by is `eps` at least.
OPTSHARD_HOST_DEVICE inline double InverseNorm(double squares, double eps) {
  const double norm = __builtin_sqrt(squares);
  return 1 / (norm < eps ? eps : norm);
}

// Likewise, with the sign of a descent: lr by the shape of the matrix. adjust_lr_fn is
// "match_rms_adamw" where `matches_adamw` is not 0, and "original" otherwise.
inline double MinusShapeScaledLr(double lr, double matches_adamw, double rows, double columns) {
  if (matches_adamw != 0) return -(lr * (0.2 * __builtin_sqrt(rows < columns ? columns : rows)));
  const double ratio = rows / columns;
  return -(lr * __builtin_sqrt(ratio < 1 ? 1 : ratio));
}

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_NORM_RATIO_H_
