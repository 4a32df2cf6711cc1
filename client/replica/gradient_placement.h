// Brings a parameter's gradient to where its shard owner reads it, as soon as backward has it.
#ifndef OPTSHARD_CLIENT_REPLICA_GRADIENT_PLACEMENT_H_
#define OPTSHARD_CLIENT_REPLICA_GRADIENT_PLACEMENT_H_

#include <ATen/core/Tensor.h>

#include "client/replica/gradient_hook.h"

namespace optshard {

// While it lives, a gradient that autograd gives to `parameter` is moved into `place`, a contiguous
// tensor of the parameter's type and shape, and parameter.grad() becomes `place` itself: what is
// added to it later is added there. So zeroing a gradient is free (it becomes none), the first
// backward writes its place once instead of adding to zeros, and its own memory is free for the
// next layer's.
//
// A gradient that needs a graph of its own (create_graph) is left where it is. Hooks that others
// have set are kept and called first. Bound to the trainer's thread; the hook runs on autograd's.
class GradientPlacement {
 public:
  GradientPlacement(at::Tensor parameter, at::Tensor place);

 private:
  const GradientHook hook_;
};

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_REPLICA_GRADIENT_PLACEMENT_H_
