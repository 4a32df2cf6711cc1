#include "client/owner/class_update.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/replica/scalar_type.h"

namespace optshard {
namespace {

// What `work` throws, for people; empty where it throws nothing.
template <typename Work>
std::string ThrownBy(const Work& work) {
  try {
    work();
    return "";
  } catch (const c10::Error& error) {
    return absl::StrCat("threw: ", error.what_without_backtrace());
  } catch (const std::exception& error) {
    return absl::StrCat("threw: ", error.what());
  } catch (...) {
    return "threw what is no std::exception";
  }
}

Buffer BufferOf(const at::Tensor& tensor, DType dtype) {
  return Buffer(tensor.mutable_data_ptr(), dtype);
}

}  // namespace

absl::Status ClassUpdate::Make(const std::map<int, at::Tensor>& owned) {
  const c10::InferenceMode normal_tensors(false);
  const c10::AutoGradMode gradients(true);
  std::vector<at::Tensor> parameters;
  for (const auto& [index, tensor] : owned) {
    Owned& own = owned_[index];
    own.parameter = tensor.detach().clone(at::MemoryFormat::Contiguous).set_requires_grad(true);
    own.gradient = at::empty_like(own.parameter, at::TensorOptions().requires_grad(false));
    parameters.push_back(own.parameter);
  }
  std::string thrown = ThrownBy([&] { optimizer_ = factory_(std::move(parameters)); });
  if (thrown.empty() && optimizer_ == nullptr) thrown = "returned no optimizer";
  if (!thrown.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the factory of \"", rule().spec().name, "\" ", thrown));
  }
  const auto& groups = optimizer_->param_groups();
  has_lr_ = !groups.empty() && groups[0].has_options() &&
            ThrownBy([&] { groups[0].options().get_lr(); }).empty();
  return CheckCanBeSharded(*optimizer_);
}

Hyperparameters ClassUpdate::Readable() const {
  Hyperparameters readable;
  if (has_lr_) readable.Set("lr", optimizer_->param_groups()[0].options().get_lr());
  return readable;
}

absl::StatusOr<TrainerUpdate::Arrays> ClassUpdate::ArraysOf(int parameter) {
  const auto found = owned_.find(parameter);
  if (found == owned_.end()) {
    return absl::FailedPreconditionError("the optimizer class was not given it");
  }
  const Owned& own = found->second;
  const DType dtype = *DTypeOf(own.gradient.scalar_type());
  const at::Tensor& now = own.parameter;
  if (now.scalar_type() != own.gradient.scalar_type() || now.sizes() != own.gradient.sizes() ||
      !now.is_contiguous()) {
    return absl::FailedPreconditionError(
        absl::StrCat("\"", rule().spec().name,
                     "\" has given it another type, shape or memory layout; a step may change "
                     "values only"));
  }
  return Arrays{BufferOf(now, dtype), BufferOf(own.gradient, dtype)};
}

absl::Status ClassUpdate::Update(absl::Span<const int> parameters) {
  const c10::InferenceMode normal_tensors(false);
  const c10::AutoGradMode gradients(true);
  for (auto& [index, own] : owned_) own.parameter.mutable_grad().reset();
  for (const int parameter : parameters) {
    Owned& own = owned_.at(parameter);
    own.parameter.mutable_grad() = own.gradient;
  }
  const std::string thrown = ThrownBy([this] { optimizer_->step(); });
  if (!thrown.empty()) {
    return absl::UnknownError(absl::StrCat("step() of ", rule().spec().name, " ", thrown));
  }
  for (const int parameter : parameters) {
    const absl::StatusOr<Arrays> arrays = ArraysOf(parameter);
    if (!arrays.ok()) return arrays.status();
  }
  return absl::OkStatus();
}

}  // namespace optshard
