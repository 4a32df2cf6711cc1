#include "benchmarks/bench_models.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace optshard {
namespace {

constexpr int kTinyParameters = 10;
constexpr int64_t kTinyElements = 100;

at::Tensor RandomGradient(const at::Tensor& parameter) {
  return torch::randn(parameter.sizes()).mul_(1e-3).to(parameter.dtype());
}

}  // namespace

torch::nn::Sequential MakeLinearLayers(int layers) {
  torch::manual_seed(0);
  torch::nn::Sequential model;
  for (int i = 0; i < layers; ++i) {
    model->push_back(torch::nn::Linear(kRecipeWidth, kRecipeWidth));
  }
  return model;
}

std::vector<at::Tensor> MakeTinyParameters() {
  torch::manual_seed(0);
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < kTinyParameters; ++i) {
    parameters.push_back(torch::randn({kTinyElements}).requires_grad_());
  }
  return parameters;
}

void FillGradients(const std::vector<at::Tensor>& parameters, int seed) {
  at::NoGradGuard no_grad;
  torch::manual_seed(seed);
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor values = RandomGradient(parameter);
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined()) {
      gradient.copy_(values);
    } else {
      gradient = values;
    }
  }
}

void FillSparseGradients(const std::vector<at::Tensor>& parameters, int seed, int every) {
  at::NoGradGuard no_grad;
  torch::manual_seed(seed);
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor rows = torch::arange(0, parameter.size(0), every, torch::kInt64);
    parameter.mutable_grad() =
        torch::sparse_coo_tensor(rows.unsqueeze(0), RandomGradient(parameter).index_select(0, rows),
                                 parameter.sizes(), {}, /*is_coalesced=*/true);
  }
}

std::map<std::string, double> CheckOf(const std::vector<at::Tensor>& parameters) {
  at::NoGradGuard no_grad;
  double sum_of_magnitudes = 0;
  double sum_of_squares = 0;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor values = parameter.to(torch::kFloat64);
    sum_of_magnitudes += values.abs().sum().item<double>();
    sum_of_squares += values.square().sum().item<double>();
  }
  return {{"sum_of_magnitudes", sum_of_magnitudes}, {"sum_of_squares", sum_of_squares}};
}

}  // namespace optshard
