#include "client/replica/gradient_placement.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "common/streaming_copy.h"

namespace optshard {

GradientPlacement::GradientPlacement(at::Tensor parameter, at::Tensor place)
    : hook_(std::move(parameter), [place = std::move(place)](const at::Tensor& owner) {
        const at::Tensor& gradient = owner.grad();
        // Anything unusual is left to the step, which has errors for it.
        if (gradient.is_same(place) || !CanBeTaken(gradient, place.scalar_type(), place)) return;
        if (place.device().is_cpu()) {
          StreamingCopy(place.mutable_data_ptr(), gradient.const_data_ptr(), place.nbytes());
          place.unsafeGetTensorImpl()->bump_version();
        } else {
          const at::NoGradGuard no_grad;
          place.copy_(gradient, /*non_blocking=*/true);
        }
        owner.mutable_grad() = place;
      }) {}

}  // namespace optshard
