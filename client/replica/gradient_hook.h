// Calls back once autograd has accumulated a parameter's gradient.
#ifndef OPTSHARD_CLIENT_REPLICA_GRADIENT_HOOK_H_
#define OPTSHARD_CLIENT_REPLICA_GRADIENT_HOOK_H_

#include <ATen/core/Tensor.h>

#include <functional>

namespace optshard {

// While it lives, `accumulated` is called each time that a backward has set parameter.grad() or
// added to it, on autograd's thread. Hooks that others have set are kept and called first; a
// parameter may have several of these, which end in any order. Bound to the trainer's thread.
class GradientHook {
 public:
  GradientHook(at::Tensor parameter, std::function<void(const at::Tensor& parameter)> accumulated);
  ~GradientHook();
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;

 private:
  class CallAfterOthers;

  const at::Tensor parameter_;
  CallAfterOthers* own_;  // the parameter's, as long as nobody has replaced it
};

// Whether a gradient can be taken away from autograd as it lies: dense, contiguous, of this type,
// and of the device and shape of `place`, and without a graph of its own (create_graph).
bool CanBeTaken(const at::Tensor& gradient, at::ScalarType type, const at::Tensor& place);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_REPLICA_GRADIENT_HOOK_H_
