// The language model of the example of state in few bits.
#ifndef OPTSHARD_EXAMPLES_LANGUAGE_MODEL_H_
#define OPTSHARD_EXAMPLES_LANGUAGE_MODEL_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <vector>

namespace optshard {

// A transformer over bytes: which byte comes next? Width 128, 4 heads, 2 layers, about 470,000
// parameters. Thread-compatible.
class LanguageModel : public torch::nn::Module {
 public:
  static constexpr int64_t kContext = 64;  // it looks at so many bytes at most

  // `seed` determines the initial values. Sets the seed of torch's default generator.
  explicit LanguageModel(uint64_t seed);

  // For int64 tokens [rows, length], length <= kContext: logits of the byte after each,
  // [rows, length, 256], in the parameters' dtype.
  at::Tensor Forward(const at::Tensor& tokens);

  // Mean negative log-likelihood, in nats a byte, of the last `length` tokens of windows
  // [rows, length + 1].
  at::Tensor Loss(const at::Tensor& windows);

 private:
  struct Layer {
    torch::nn::LayerNorm attention_norm{nullptr};
    torch::nn::Linear query_key_value{nullptr};
    torch::nn::Linear attention_output{nullptr};
    torch::nn::LayerNorm hidden_norm{nullptr};
    torch::nn::Linear hidden{nullptr};
    torch::nn::Linear output{nullptr};
  };

  static at::Tensor Attention(Layer& layer, const at::Tensor& x);

  torch::nn::Embedding tokens_{nullptr};
  torch::nn::Embedding positions_{nullptr};
  std::vector<Layer> layers_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear next_{nullptr};
};

}  // namespace optshard

#endif  // OPTSHARD_EXAMPLES_LANGUAGE_MODEL_H_
