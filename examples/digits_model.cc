#include "examples/digits_model.h"

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/relu.h>
#include <torch/utils.h>

namespace optshard {

DigitsModel::DigitsModel(uint64_t seed) {
  torch::manual_seed(seed);
  first_ = register_module(
      "first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, /*kernel_size=*/3).padding(1)));
  second_ = register_module(
      "second", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, /*kernel_size=*/3).padding(1)));
  hidden_ = register_module("hidden", torch::nn::Linear(32 * 4 * 4, 64));
  output_ = register_module("output", torch::nn::Linear(64, 10));
}

at::Tensor DigitsModel::Forward(const at::Tensor& images) {
  at::Tensor x = at::relu(first_->forward(images));
  x = at::max_pool2d(at::relu(second_->forward(x)), /*kernel_size=*/2);
  x = at::relu(hidden_->forward(x.flatten(/*start_dim=*/1)));
  return at::log_softmax(output_->forward(x), /*dim=*/1);
}

at::Tensor DigitsModel::Loss(const Digits& batch) {
  return at::nll_loss(Forward(batch.images), batch.labels);
}

double DigitsModel::Accuracy(const Digits& digits) {
  torch::NoGradGuard no_grad;
  const at::Tensor right = Forward(digits.images).argmax(/*dim=*/1).eq(digits.labels);
  return right.sum().item<double>() / static_cast<double>(digits.labels.numel());
}

}  // namespace optshard
