// The model with which PyTorch's documentation shows what sharding saves: 20 x Linear(2000, 2000).
#ifndef OPTSHARD_EXAMPLES_RECIPE_MODEL_H_
#define OPTSHARD_EXAMPLES_RECIPE_MODEL_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <vector>

namespace optshard {

// Thread-compatible.
class RecipeModel : public torch::nn::Module {
 public:
  // `layers` layers of `width` inputs and outputs. `seed` determines the initial values.
  RecipeModel(int layers, int width, uint64_t seed);

  // The mean squared error on inputs and targets [rows, width], which are random and depend on
  // `seed`.
  at::Tensor Loss(int rows, uint64_t seed);

  // The sum of the values of all parameters, computed in double precision.
  double Sum() const;

 private:
  const int width_;
  std::vector<torch::nn::Linear> layers_;
};

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_RECIPE_MODEL_H_
