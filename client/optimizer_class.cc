#include "client/optimizer_class.h"

#include <cxxabi.h>
#include <torch/optim/lbfgs.h>

#include <cstdlib>

#include "absl/strings/match.h"

namespace optshard {
namespace {

absl::Status LbfgsCannotBeSharded() {
  return absl::InvalidArgumentError(
      "LBFGS cannot be sharded: each of its steps takes inner products over all parameters and "
      "evaluates the model several times; give another rule, or run torch::optim::LBFGS on each "
      "rank with averaged gradients");
}

}  // namespace

std::string ClassName(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : type.name();
}

absl::Status CheckCanBeSharded(absl::string_view name) {
  const bool is_lbfgs =
      absl::EqualsIgnoreCase(name, "lbfgs") || absl::EqualsIgnoreCase(name, "torch::optim::lbfgs");
  return is_lbfgs ? LbfgsCannotBeSharded() : absl::OkStatus();
}

absl::Status CheckCanBeSharded(const torch::optim::Optimizer& optimizer) {
  const bool is_lbfgs = dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr;
  return is_lbfgs ? LbfgsCannotBeSharded() : absl::OkStatus();
}

}  // namespace optshard
