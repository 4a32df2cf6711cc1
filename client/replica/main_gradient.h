// The float32 gradient of a 16-bit parameter, accumulated beside it: Megatron's main_grad.
#ifndef OPTSHARD_CLIENT_REPLICA_MAIN_GRADIENT_H_
#define OPTSHARD_CLIENT_REPLICA_MAIN_GRADIENT_H_

#include <ATen/core/Tensor.h>

#include "client/replica/gradient_hook.h"

namespace optshard {

// While it lives, a gradient that autograd gives to `parameter` is added to `place` in float32, and
// parameter.grad() becomes none. The first one after Zero is written there instead of added to
// zeros. One that needs a graph of its own (create_graph) stays in parameter.grad() until TakeIn.
// Bound to the trainer's thread; the hook runs on autograd's.
class MainGradient {
 public:
  // `place`: float32, contiguous, of the parameter's shape, with any content. A gradient that the
  // parameter has already is taken in.
  MainGradient(at::Tensor parameter, at::Tensor place);

  // For a trainer that adds to it itself, and may keep it. From the first call on there always is a
  // gradient, be it of zeros: nothing tells when somebody writes to memory.
  const at::Tensor& HandOut();
  // Adds what parameter.grad() has, if anything, and frees that. Returns whether there was any. It
  // is of the parameter's type and shape.
  bool TakeIn();
  // As torch::optim::Optimizer::zero_grad. parameter.grad() becomes none in any case.
  void Zero(bool set_to_none);

  // What the other one has handed out is this one's from now on, at its place, with zeros.
  void TakeHandedOut(MainGradient& other);

  // Whether there is a gradient.
  bool present() const { return present_; }
  const at::Tensor& place() const { return place_; }

 private:
  // Contiguous, of the parameter's type.
  void Add(const at::Tensor& gradient);
  void AddOnHost(const at::Tensor& gradient);

  const at::Tensor parameter_;
  at::Tensor place_;
  bool present_ = false;
  bool handed_out_ = false;
  const GradientHook hook_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_REPLICA_MAIN_GRADIENT_H_
