#include "client/replica/gradient_hook.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace optshard {
namespace {

using torch::autograd::PostAccumulateGradHook;
using torch::autograd::Variable;
using torch::autograd::impl::materialize_autograd_meta;
using torch::autograd::impl::post_acc_grad_hooks;
using torch::autograd::impl::set_post_acc_grad_hooks;

class CallAfterOthers : public PostAccumulateGradHook {
 public:
  CallAfterOthers(std::function<void(const at::Tensor& parameter)> accumulated,
                  std::unique_ptr<PostAccumulateGradHook> others)
      : accumulated_(std::move(accumulated)), others_(std::move(others)) {}

  void operator()(const Variable& parameter) override {
    if (others_ != nullptr) (*others_)(parameter);
    accumulated_(parameter);
  }

  std::unique_ptr<PostAccumulateGradHook> TakeOthers() { return std::move(others_); }

 private:
  const std::function<void(const at::Tensor& parameter)> accumulated_;
  std::unique_ptr<PostAccumulateGradHook> others_;
};

}  // namespace

GradientHook::GradientHook(at::Tensor parameter,
                           std::function<void(const at::Tensor& parameter)> accumulated)
    : parameter_(std::move(parameter)) {
  // A tensor that has never required a gradient has no place for hooks yet.
  materialize_autograd_meta(parameter_);
  auto others = std::move(post_acc_grad_hooks(parameter_));
  set_post_acc_grad_hooks(
      parameter_, std::make_unique<CallAfterOthers>(std::move(accumulated), std::move(others)));
}

GradientHook::~GradientHook() {
  // Unless somebody has replaced it.
  auto* const own = dynamic_cast<CallAfterOthers*>(post_acc_grad_hooks(parameter_).get());
  if (own != nullptr) set_post_acc_grad_hooks(parameter_, own->TakeOthers());
}

bool CanBeTaken(const at::Tensor& gradient, at::ScalarType type, at::IntArrayRef sizes) {
  return gradient.defined() && !gradient.requires_grad() && gradient.layout() == at::kStrided &&
         gradient.scalar_type() == type && gradient.device().is_cpu() &&
         gradient.sizes() == sizes && gradient.is_contiguous();
}

}  // namespace optshard
