#include "examples/recipe_model.h"

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <torch/utils.h>

#include "absl/strings/str_cat.h"

namespace optshard {

RecipeModel::RecipeModel(int layers, int width, uint64_t seed) : width_(width) {
  torch::manual_seed(seed);
  for (int i = 0; i < layers; ++i) {
    layers_.push_back(register_module(absl::StrCat("layer", i), torch::nn::Linear(width, width)));
  }
}

at::Tensor RecipeModel::Loss(int rows, uint64_t seed) {
  torch::manual_seed(seed);
  at::Tensor x = at::randn({rows, width_});
  const at::Tensor target = at::randn({rows, width_});
  for (torch::nn::Linear& layer : layers_) x = layer->forward(x);
  return at::mse_loss(x, target);
}

double RecipeModel::Sum() const {
  torch::NoGradGuard no_grad;
  double sum = 0;
  for (const at::Tensor& parameter : parameters()) {
    sum += parameter.sum(at::kDouble).item<double>();
  }
  return sum;
}

}  // namespace optshard
