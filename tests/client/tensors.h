// Tensors and rules for tests of the optimizer: small enough that sums of a few of them are exact.
#ifndef OPTSHARD_TESTS_CLIENT_TENSORS_H_
#define OPTSHARD_TESTS_CLIENT_TENSORS_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <cstdint>
#include <string>
#include <vector>

#include "client/rule_options.h"

namespace optshard::testing {

inline at::Tensor Gradient(const std::vector<int64_t>& shape, float value) {
  return at::full(shape, value);
}

inline at::Tensor Parameter(const std::vector<int64_t>& shape, float value) {
  return Gradient(shape, value).set_requires_grad(true);
}

inline float First(const at::Tensor& tensor) { return tensor.const_data_ptr<float>()[0]; }

inline std::string BytesOf(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().contiguous();
  return std::string(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
}

inline RuleOptions Sgd(double lr) { return RuleOptions("sgd").Set("lr", lr); }

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_CLIENT_TENSORS_H_
