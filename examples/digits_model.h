// The classifier that the digits example trains.
#ifndef OPTSHARD_EXAMPLES_DIGITS_MODEL_H_
#define OPTSHARD_EXAMPLES_DIGITS_MODEL_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

#include "examples/digits_data.h"

namespace optshard {

// Two convolutions and two linear layers with about 38,000 parameters. Thread-compatible.
class DigitsModel : public torch::nn::Module {
 public:
  // `seed` determines the initial values. Sets the seed of torch's default generator.
  explicit DigitsModel(uint64_t seed);

  // Log-probabilities [n, 10].
  at::Tensor Forward(const at::Tensor& images);

  // Mean negative log-likelihood.
  at::Tensor Loss(const Digits& batch);

  // The share of digits that it classifies correctly, from 0 to 1.
  double Accuracy(const Digits& digits);

 private:
  torch::nn::Conv2d first_{nullptr};
  torch::nn::Conv2d second_{nullptr};
  torch::nn::Linear hidden_{nullptr};
  torch::nn::Linear output_{nullptr};
};

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_DIGITS_MODEL_H_
