// What each thread of the kernel of step sizes does: one step's, from the sums of squares that lie
// on the device to the coefficient that the next kernel reads there.
#ifndef OPTSHARD_SERVER_UPDATE_CUDA_STEP_SIZE_BODY_H_
#define OPTSHARD_SERVER_UPDATE_CUDA_STEP_SIZE_BODY_H_

#include <cstdint>

#include "common/host_device.h"
#include "server/update/cuda/squares_arguments.h"
#include "server/update/norm_ratio.h"

namespace optshard {

struct StepSize {
  enum class Of : int32_t { kNormRatio, kRelativeStep };  // server/update/norm_ratio.h

  Of of = Of::kNormRatio;
  // Its sums are 2 * task, of the parameter, and the one after it, of the direction.
  int64_t task = 0;
  double numbers[4] = {};  // what the function has before its sums
  void* to = nullptr;      // in the device's memory
};

struct StepSizeArguments {
  const StepSize* steps = nullptr;
  int32_t count = 0;
  bool is_double = false;  // what `to` points to: or float
  const SumOfSquaresOnDevice* sums = nullptr;
};

namespace kernels {

OPTSHARD_HOST_DEVICE inline void SetStepSize(const StepSizeArguments& arguments, int32_t index) {
  const StepSize& step = arguments.steps[index];
  const SumOfSquaresOnDevice* const sums = arguments.sums + 2 * step.task;
  const double* const numbers = step.numbers;
  const double size =
      step.of == StepSize::Of::kNormRatio
          ? MinusNormScaledLr(numbers[0], numbers[1], sums[0].squares, sums[1].squares)
          : MinusRelativeStep(numbers[0], numbers[1], numbers[2], numbers[3], sums[0].squares,
                              sums[1].squares);
  if (arguments.is_double) {
    *static_cast<double*>(step.to) = size;
  } else {
    *static_cast<float*>(step.to) = static_cast<float>(size);
  }
}

}  // namespace kernels
}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CUDA_STEP_SIZE_BODY_H_
