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

}  // namespace

class GradientHook::CallAfterOthers : public PostAccumulateGradHook {
 public:
  CallAfterOthers(std::function<void(const at::Tensor& parameter)> accumulated,
                  std::unique_ptr<PostAccumulateGradHook> others)
      : accumulated_(std::move(accumulated)), others_(std::move(others)) {}

  void operator()(const Variable& parameter) override {
    if (others_ != nullptr) (*others_)(parameter);
    accumulated_(parameter);
  }

  std::unique_ptr<PostAccumulateGradHook>& others() { return others_; }

 private:
  const std::function<void(const at::Tensor& parameter)> accumulated_;
  std::unique_ptr<PostAccumulateGradHook> others_;
};

GradientHook::GradientHook(at::Tensor parameter,
                           std::function<void(const at::Tensor& parameter)> accumulated)
    : parameter_(std::move(parameter)) {
  // A tensor that has never required a gradient has no place for hooks yet.
  materialize_autograd_meta(parameter_);
  auto own = std::make_unique<CallAfterOthers>(std::move(accumulated),
                                               std::move(post_acc_grad_hooks(parameter_)));
  own_ = own.get();
  set_post_acc_grad_hooks(parameter_, std::move(own));
}

GradientHook::~GradientHook() {
  // Behind those of optimizers that were made after this one. Not there where somebody has replaced
  // it.
  std::unique_ptr<PostAccumulateGradHook>* place = &post_acc_grad_hooks(parameter_);
  while (auto* const hook = dynamic_cast<CallAfterOthers*>(place->get())) {
    if (hook == own_) {
      *place = std::unique_ptr<PostAccumulateGradHook>(std::move(hook->others()));
      return;
    }
    place = &hook->others();
  }
}

bool CanBeTaken(const at::Tensor& gradient, at::ScalarType type, const at::Tensor& place) {
  return gradient.defined() && !gradient.requires_grad() && gradient.layout() == at::kStrided &&
         gradient.scalar_type() == type && gradient.device() == place.device() &&
         gradient.sizes() == place.sizes() && gradient.is_contiguous();
}

}  // namespace optshard
