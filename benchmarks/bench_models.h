// The models of the benchmarks: the same, with the same values, as those of peers/bench_models.py.
#ifndef OPTSHARD_BENCHMARKS_BENCH_MODELS_H_
#define OPTSHARD_BENCHMARKS_BENCH_MODELS_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace optshard {

constexpr int64_t kRecipeWidth = 2000;

// `layers` x Linear(kRecipeWidth, kRecipeWidth); the recipe has 20.
torch::nn::Sequential MakeLinearLayers(int layers);

// 10 parameters of 100 elements.
std::vector<at::Tensor> MakeTinyParameters();

// In place and for good. Other values on every rank, or the same where they are averages already.
void FillGradients(const std::vector<at::Tensor>& parameters, int seed);

// As FillGradients, but sparse gradients of one row in `every`, from the first on.
void FillSparseGradients(const std::vector<at::Tensor>& parameters, int seed, int every);

// What tells a wrong update or a parameter that was not published.
std::map<std::string, double> CheckOf(const std::vector<at::Tensor>& parameters);

}  // namespace optshard

#endif  // OPTSHARD_BENCHMARKS_BENCH_MODELS_H_
