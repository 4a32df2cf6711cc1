#include "benchmarks/recipe_training.h"

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <torch/utils.h>

#include "benchmarks/bench_models.h"

namespace optshard {

RecipeTraining::RecipeTraining(int layers, int rows, int rank) : model_(MakeLinearLayers(layers)) {
  torch::manual_seed(100 + rank);
  inputs_ = at::randn({rows, kRecipeWidth});
  targets_ = at::randn({rows, kRecipeWidth});
}

void RecipeTraining::ForwardBackward() {
  at::mse_loss(model_->forward(inputs_), targets_).backward();
}

}  // namespace optshard
