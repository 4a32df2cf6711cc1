#include "examples/digits_training.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <vector>

namespace optshard {

int64_t StepsOf(const DigitsTraining& training, const Digits& digits) {
  return training.epochs * (digits.labels.numel() / training.batch_size);
}

void TrainDigits(const DigitsTraining& training, const Digits& digits, DigitsModel& model,
                 torch::optim::Optimizer& optimizer, const DigitsCallbacks& callbacks) {
  const int64_t count = digits.labels.numel();
  const int64_t batches = count / training.batch_size;
  const int64_t share = training.batch_size / training.world_size;
  int64_t step = training.finished_steps;
  while (step < StepsOf(training, digits)) {
    const int64_t epoch = step / batches + 1;
    const std::vector<int64_t> order =
        Permutation(count, training.seed + static_cast<uint64_t>(epoch));
    double loss_sum = 0;
    int64_t losses = 0;
    while (step < epoch * batches) {
      const int64_t batch = step % batches;
      const auto first = order.begin() + batch * training.batch_size + training.rank * share;
      const at::Tensor index = at::tensor(std::vector<int64_t>(first, first + share));
      optimizer.zero_grad();
      const at::Tensor loss =
          model.Loss({digits.images.index_select(0, index), digits.labels.index_select(0, index)});
      loss.backward();
      optimizer.step();
      loss_sum += loss.item<double>();
      ++losses;
      ++step;
      if (callbacks.step_ended) callbacks.step_ended(step);
    }
    callbacks.epoch_ended({static_cast<int>(epoch), loss_sum / static_cast<double>(losses)});
  }
}

}  // namespace optshard
