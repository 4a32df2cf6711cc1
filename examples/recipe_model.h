// The model of PyTorch's example of what sharding saves: 20 x Linear(2000, 2000).
#ifndef OPTSHARD_EXAMPLES_RECIPE_MODEL_H_
#define OPTSHARD_EXAMPLES_RECIPE_MODEL_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <vector>

namespace optshard {

class RecipeModel : public torch::nn::Module {
 public:
  // With initial values from `seed`.
  RecipeModel(int layers, int width, uint64_t seed);

  // The mean squared error on random inputs and targets [rows, width] from `seed`.
  at::Tensor Loss(int rows, uint64_t seed);

  // The sum of all parameters, in double.
  double Sum() const;

 private:
  const int width_;
  std::vector<torch::nn::Linear> layers_;
};

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_RECIPE_MODEL_H_
