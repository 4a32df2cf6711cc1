// An optimizer class of LibTorch's kind that steps a param group as it is.
#ifndef OPTSHARD_CLIENT_OPTIMIZER_CLASS_H_
#define OPTSHARD_CLIENT_OPTIMIZER_CLASS_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace optshard {

// Makes the optimizer of the parameters that a rank owns: none where there are more ranks than
// parameters. It is not to depend on which these are, so that all ranks get the same options.
using OptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;

// As it is written in C++: "torch::optim::Adam".
std::string ClassName(const std::type_info& type);

// INVALID_ARGUMENT with the reason, for classes whose step needs more than the parameters and
// gradients of one rank. By a class's or rule's name, whatever the case, or by an object.
absl::Status CheckCanBeSharded(absl::string_view name);
absl::Status CheckCanBeSharded(const torch::optim::Optimizer& optimizer);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OPTIMIZER_CLASS_H_
