#include "examples/language_model.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

constexpr int64_t kTokens = 256;
constexpr int64_t kWidth = 128;
constexpr int64_t kHeads = 4;
constexpr int64_t kHeadWidth = kWidth / kHeads;
constexpr int kLayers = 2;

}  // namespace

LanguageModel::LanguageModel(uint64_t seed) {
  using torch::nn::Embedding;
  using torch::nn::LayerNorm;
  using torch::nn::LayerNormOptions;
  using torch::nn::Linear;
  torch::manual_seed(seed);
  tokens_ = register_module("tokens", Embedding(kTokens, kWidth));
  positions_ = register_module("positions", Embedding(kContext, kWidth));
  const auto norm = [] { return LayerNorm(LayerNormOptions({kWidth})); };
  for (int i = 0; i < kLayers; ++i) {
    const auto named = [i](const char* name) { return absl::StrCat("layer", i, "_", name); };
    Layer layer;
    layer.attention_norm = register_module(named("attention_norm"), norm());
    layer.query_key_value = register_module(named("query_key_value"), Linear(kWidth, 3 * kWidth));
    layer.attention_output = register_module(named("attention_output"), Linear(kWidth, kWidth));
    layer.hidden_norm = register_module(named("hidden_norm"), norm());
    layer.hidden = register_module(named("hidden"), Linear(kWidth, 4 * kWidth));
    layer.output = register_module(named("output"), Linear(4 * kWidth, kWidth));
    layers_.push_back(layer);
  }
  norm_ = register_module("norm", norm());
  next_ = register_module("next", Linear(kWidth, kTokens));
}

at::Tensor LanguageModel::Forward(const at::Tensor& tokens) {
  const at::Tensor places = at::arange(tokens.size(1), at::kLong);
  at::Tensor x = tokens_->forward(tokens) + positions_->forward(places);
  for (Layer& layer : layers_) {
    x = x + Attention(layer, layer.attention_norm->forward(x));
    const at::Tensor hidden = layer.hidden->forward(layer.hidden_norm->forward(x));
    x = x + layer.output->forward(at::gelu(hidden));
  }
  return next_->forward(norm_->forward(x));
}

at::Tensor LanguageModel::Attention(Layer& layer, const at::Tensor& x) {
  const int64_t rows = x.size(0);
  const int64_t length = x.size(1);
  // [3, rows, heads, length, head width]
  const at::Tensor parts = layer.query_key_value->forward(x)
                               .view({rows, length, 3, kHeads, kHeadWidth})
                               .permute({2, 0, 3, 1, 4});
  const at::Tensor scores =
      at::matmul(parts[0], parts[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(kHeadWidth));
  const at::Tensor later = at::ones({length, length}, at::kBool).triu(/*diagonal=*/1);
  const at::Tensor weights =
      at::softmax(scores.masked_fill(later, -std::numeric_limits<double>::infinity()), /*dim=*/-1);
  const at::Tensor heads = at::matmul(weights, parts[2]).transpose(1, 2);
  return layer.attention_output->forward(heads.reshape({rows, length, kWidth}));
}

at::Tensor LanguageModel::Loss(const at::Tensor& windows) {
  const int64_t length = windows.size(1) - 1;
  const at::Tensor logits = Forward(windows.narrow(/*dim=*/1, 0, length)).to(at::kFloat);
  const at::Tensor next = windows.narrow(/*dim=*/1, 1, length);
  return at::cross_entropy_loss(logits.flatten(0, 1), next.flatten());
}

}  // namespace optshard
