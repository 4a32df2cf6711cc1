#include "client/replica/main_gradient.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "client/replica/scalar_type.h"
#include "common/buffer.h"
#include "common/default_floating_point.h"
#include "common/dtype_conversion.h"

namespace optshard {
namespace {

void AddWidened(ConstBuffer gradient, int64_t elements, float* to) {
  constexpr int64_t kTile = 1024;
  float widened[kTile];
  for (int64_t begin = 0; begin < elements; begin += kTile) {
    const int64_t count = std::min(kTile, elements - begin);
    Widen(gradient.dtype(), gradient.From(begin).data(), count, widened);
    for (int64_t i = 0; i < count; ++i) to[begin + i] += widened[i];
  }
}

at::Tensor Dense(const at::Tensor& gradient) {
  return gradient.is_sparse() ? gradient.to_dense() : gradient;
}

}  // namespace

MainGradient::MainGradient(at::Tensor parameter, at::Tensor place)
    : parameter_(std::move(parameter)),
      place_(std::move(place)),
      hook_(parameter_, [this](const at::Tensor& owner) {
        if (owner.grad().requires_grad()) return;
        const at::NoGradGuard no_grad;
        const at::Tensor gradient = Dense(owner.grad()).contiguous();
        if (!CanBeTaken(gradient, owner.scalar_type(), place_)) return;
        Add(gradient);
        owner.mutable_grad().reset();
      }) {
  TakeIn();
}

const at::Tensor& MainGradient::HandOut() {
  const at::NoGradGuard no_grad;
  if (!present_) place_.zero_();
  present_ = handed_out_ = true;
  return place_;
}

bool MainGradient::TakeIn() {
  if (!parameter_.grad().defined()) return false;
  const at::NoGradGuard no_grad;
  Add(Dense(parameter_.grad().detach()).contiguous());
  parameter_.mutable_grad().reset();
  return true;
}

void MainGradient::Zero(bool set_to_none) {
  const bool had_gradient = present_ || parameter_.grad().defined();
  parameter_.mutable_grad().reset();
  present_ = had_gradient && (handed_out_ || !set_to_none);
  if (!present_) return;
  const at::NoGradGuard no_grad;
  place_.zero_();
}

void MainGradient::TakeHandedOut(MainGradient& other) {
  if (!other.handed_out_) return;
  const at::NoGradGuard no_grad;
  other.place_.set_data(place_);
  place_ = other.place_;
  place_.zero_();
  present_ = handed_out_ = true;
}

void MainGradient::Add(const at::Tensor& gradient) {
  if (place_.device().is_cpu()) {
    AddOnHost(gradient);
  } else if (present_) {
    place_.add_(gradient);
  } else {
    place_.copy_(gradient, /*non_blocking=*/true);
  }
  present_ = true;
}

void MainGradient::AddOnHost(const at::Tensor& gradient) {
  const DefaultFloatingPoint default_mode;
  const ConstBuffer from(gradient.const_data_ptr(), *DTypeOf(gradient.scalar_type()));
  auto* const to = place_.mutable_data_ptr<float>();
  if (present_) {
    AddWidened(from, gradient.numel(), to);
  } else {
    Widen(from.dtype(), from.data(), gradient.numel(), to);
  }
  place_.unsafeGetTensorImpl()->bump_version();
}

}  // namespace optshard
