#include "client/replica/gradient_placement.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

#include "common/streaming_copy.h"

namespace optshard {
namespace {

using torch::autograd::PostAccumulateGradHook;
using torch::autograd::Variable;
using torch::autograd::impl::materialize_autograd_meta;
using torch::autograd::impl::post_acc_grad_hooks;
using torch::autograd::impl::set_post_acc_grad_hooks;

class MoveIntoPlace : public PostAccumulateGradHook {
 public:
  MoveIntoPlace(at::Tensor place, std::unique_ptr<PostAccumulateGradHook> others)
      : place_(std::move(place)), others_(std::move(others)) {}

  void operator()(const Variable& parameter) override {
    if (others_ != nullptr) (*others_)(parameter);
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined() || gradient.is_same(place_) || gradient.requires_grad()) return;
    // Anything unusual is left to the step, which has errors for it.
    if (gradient.layout() != at::kStrided || gradient.scalar_type() != place_.scalar_type() ||
        !gradient.device().is_cpu() || gradient.sizes() != place_.sizes() ||
        !gradient.is_contiguous()) {
      return;
    }
    StreamingCopy(place_.mutable_data_ptr(), gradient.const_data_ptr(), place_.nbytes());
    place_.unsafeGetTensorImpl()->bump_version();
    parameter.mutable_grad() = place_;
  }

  std::unique_ptr<PostAccumulateGradHook> TakeOthers() { return std::move(others_); }

 private:
  const at::Tensor place_;
  std::unique_ptr<PostAccumulateGradHook> others_;
};

}  // namespace

GradientPlacement::GradientPlacement(at::Tensor parameter, at::Tensor place)
    : parameter_(std::move(parameter)) {
  // A tensor that has never required a gradient has no place for hooks yet.
  materialize_autograd_meta(parameter_);
  auto others = std::move(post_acc_grad_hooks(parameter_));
  set_post_acc_grad_hooks(parameter_,
                          std::make_unique<MoveIntoPlace>(std::move(place), std::move(others)));
}

GradientPlacement::~GradientPlacement() {
  // Unless somebody has replaced it.
  auto* const own = dynamic_cast<MoveIntoPlace*>(post_acc_grad_hooks(parameter_).get());
  if (own != nullptr) set_post_acc_grad_hooks(parameter_, own->TakeOthers());
}

}  // namespace optshard
