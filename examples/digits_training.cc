#include "examples/digits_training.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <vector>

namespace optshard {

void TrainDigits(const DigitsTraining& training, const Digits& digits, DigitsModel& model,
                 torch::optim::Optimizer& optimizer,
                 const std::function<void(const DigitsProgress&)>& progress) {
  const int64_t count = digits.labels.numel();
  const int64_t batches = count / training.batch_size;
  const int64_t share = training.batch_size / training.world_size;
  for (int epoch = 1; epoch <= training.epochs; ++epoch) {
    const std::vector<int64_t> order = Permutation(count, training.seed + epoch);
    double loss_sum = 0;
    for (int64_t batch = 0; batch < batches; ++batch) {
      const auto first = order.begin() + batch * training.batch_size + training.rank * share;
      const at::Tensor index = at::tensor(std::vector<int64_t>(first, first + share));
      optimizer.zero_grad();
      const at::Tensor loss =
          model.Loss({digits.images.index_select(0, index), digits.labels.index_select(0, index)});
      loss.backward();
      optimizer.step();
      loss_sum += loss.item<double>();
    }
    progress({epoch, loss_sum / static_cast<double>(batches)});
  }
}

}  // namespace optshard
