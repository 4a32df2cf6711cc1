// Forward and backward of the recipe, on one rank.
#ifndef OPTSHARD_BENCHMARKS_RECIPE_TRAINING_H_
#define OPTSHARD_BENCHMARKS_RECIPE_TRAINING_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

namespace optshard {

// The same batch of `rows` each time, another on every rank.
class RecipeTraining {
 public:
  RecipeTraining(int layers, int rows, int rank);

  // Adds to the gradients.
  void ForwardBackward();

  const torch::nn::Sequential& model() const { return model_; }

 private:
  torch::nn::Sequential model_;
  at::Tensor inputs_;
  at::Tensor targets_;
};

}  // namespace optshard

#endif  // OPTSHARD_BENCHMARKS_RECIPE_TRAINING_H_
