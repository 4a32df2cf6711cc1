#include "client/replica/replica.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/replica/scalar_type.h"
#include "common/dtype.h"
#include "common/row_marks.h"

namespace optshard {
namespace {

// A trainer may have replaced the values (torch::load does), but not by something else.
absl::Status CheckValues(const at::Tensor& parameter, const ParameterSpec& spec,
                         c10::Device device) {
  if (parameter.layout() == at::kStrided && parameter.device() == device &&
      parameter.scalar_type() == ScalarTypeOf(spec.dtype) &&
      parameter.sizes() == at::IntArrayRef(spec.shape)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "parameter \"", spec.name, "\" has become ", c10::toString(parameter.scalar_type()), " [",
      absl::StrJoin(parameter.sizes(), ", "), "] on ", parameter.device().str(),
      " since the optimizer was made with it as ", c10::toString(ScalarTypeOf(spec.dtype)), " [",
      absl::StrJoin(spec.shape, ", "), "] on ", device.str(),
      ": make another optimizer after such a change"));
}

}  // namespace

Replica::Replica(const ParameterList& list)
    : list_(list),
      tensors_(list.tensors.size()),
      main_gradients_(list.tensors.size()),
      row_marks_(list.tensors.size()) {}

absl::Status Replica::CheckAllValues() const {
  for (size_t i = 0; i < list_.tensors.size(); ++i) {
    absl::Status status =
        CheckValues(list_.tensors[i], list_.space.parameter(static_cast<int>(i)), list_.device);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Replica::CheckAllGradients() const {
  for (size_t i = 0; i < list_.tensors.size(); ++i) {
    const at::Tensor& parameter = list_.tensors[i];
    if (!parameter.requires_grad() || !parameter.grad().defined()) continue;
    absl::Status status =
        CheckGradient(parameter, parameter.grad(), list_.space.parameter(static_cast<int>(i)).name);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

Buffer Replica::ValuesOf(size_t index) {
  return list_.tensors[index].numel() > 0 ? GatherParameter(index) : Buffer();
}

void Replica::GatherGradient(size_t index, bool all_rows) {
  const at::Tensor& parameter = list_.tensors[index];
  ReplicaTensor& tensor = tensors_[index];
  tensor.gradient = nullptr;
  tensor.gradient_rows = GradientRows();
  if (!parameter.requires_grad()) return;
  MainGradient* const main = main_gradients_[index].get();
  if (main != nullptr) {
    if (main->TakeIn()) CountCopy();
    if (!main->present()) return;
    tensor.gradient = parameter.numel() > 0 ? ReadArrayOf(main->place()) : NoElements();
    return;
  }
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined()) return;
  if (gradient.is_sparse() && gradient.numel() > 0) {
    GatherRows(index, gradient, all_rows);
  } else {
    tensor.gradient = PlaceOfGradient(index, gradient);
  }
}

void Replica::GatherRows(size_t index, const at::Tensor& gradient, bool all_rows) {
  const at::Tensor rows = gradient.coalesce();
  const at::Tensor indices = rows.indices().contiguous();
  const at::Tensor values = rows.values().contiguous();
  const ParameterSpec& parameter = list_.space.parameter(static_cast<int>(index));
  const Buffer place = RowPlace(index);
  const int64_t row_elements = parameter.elements() / RowsOf(parameter);
  const size_t row_bytes = row_elements * SizeOf(parameter.dtype);
  if (all_rows) std::memset(place.data(), 0, RowsOf(parameter) * row_bytes);
  std::vector<uint64_t>& marks = row_marks_[index];
  marks.assign(RowMarkWords(RowsOf(parameter)), 0);
  const ConstBuffer from = ReadArrayOf(values);
  for (int64_t k = 0; k < indices.numel(); ++k) {
    const int64_t row = indices.const_data_ptr<int64_t>()[k];
    std::memcpy(place.From(row * row_elements).data(), from.From(k * row_elements).data(),
                row_bytes);
    MarkRow(marks.data(), row);
  }
  tensors_[index].gradient = place;
  if (!all_rows) tensors_[index].gradient_rows = {marks.data(), row_elements};
}

absl::Status Replica::Gather(const std::vector<bool>& all_rows) {
  absl::Status status = CheckAllValues();
  status.Update(CheckAllGradients());
  if (!status.ok()) return status;
  c10::InferenceMode normal_tensors(false);
  at::NoGradGuard no_grad;
  gradients_copied_ = 0;
  for (size_t i = 0; i < list_.tensors.size(); ++i) {
    const int group = list_.space.group_of(static_cast<int>(i));
    tensors_[i].parameter = ValuesOf(i);
    GatherGradient(i, !all_rows.empty() && all_rows[group]);
  }
  return absl::OkStatus();
}

absl::Status Replica::GatherValues() {
  if (absl::Status status = CheckAllValues(); !status.ok()) return status;
  c10::InferenceMode normal_tensors(false);
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < list_.tensors.size(); ++i) {
    tensors_[i] = {ValuesOf(i), ConstBuffer(), GradientRows()};
  }
  return absl::OkStatus();
}

void Replica::AddTo(ParameterMemory* memory) const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    memory->values.emplace_back(tensors_[i].parameter);
    if (!tensors_[i].parameter) continue;
    // Not the tensor: its owner may give it other memory.
    memory->keeps.push_back(std::make_shared<const OwnUse>(PlaceOfParameter(i).storage()));
  }
}

void Replica::ZeroGradients(bool set_to_none) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < list_.tensors.size(); ++i) {
    if (main_gradients_[i] != nullptr) {
      main_gradients_[i]->Zero(set_to_none);
      continue;
    }
    at::Tensor& gradient = list_.tensors[i].mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none) {
      gradient.reset();
    } else {
      ZeroGradient(i, gradient);
    }
  }
}

void Replica::SetMainGradient(size_t index, at::Tensor place) {
  main_gradients_[index] = std::make_unique<MainGradient>(list_.tensors[index], std::move(place));
}

ConstBuffer Replica::NoElements() {
  static constexpr double kNone = 0;
  return &kNone;
}

Buffer Replica::ArrayOf(const at::Tensor& tensor) {
  return Buffer(tensor.mutable_data_ptr(), *DTypeOf(tensor.scalar_type()));
}

ConstBuffer Replica::ReadArrayOf(const at::Tensor& tensor) {
  return ConstBuffer(tensor.const_data_ptr(), *DTypeOf(tensor.scalar_type()));
}

void Replica::Scatter() {
  c10::InferenceMode normal_tensors(false);
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < list_.tensors.size(); ++i) {
    ScatterParameter(i);
    list_.tensors[i].unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace optshard
