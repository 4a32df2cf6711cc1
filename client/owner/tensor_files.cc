#include "client/owner/tensor_files.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace optshard {
namespace {

struct TypePair {
  TensorType file;
  at::ScalarType torch;
};
constexpr TypePair kTypes[] = {
    {TensorType::kBool, at::kBool}, {TensorType::kU8, at::kByte},
    {TensorType::kI8, at::kChar},   {TensorType::kI16, at::kShort},
    {TensorType::kF16, at::kHalf},  {TensorType::kBF16, at::kBFloat16},
    {TensorType::kI32, at::kInt},   {TensorType::kF32, at::kFloat},
    {TensorType::kI64, at::kLong},  {TensorType::kF64, at::kDouble},
};

}  // namespace

absl::optional<TensorType> TensorTypeOf(at::ScalarType type) {
  for (const TypePair& pair : kTypes) {
    if (pair.torch == type) return pair.file;
  }
  return absl::nullopt;
}

absl::Status CheckWritable(const at::Tensor& tensor, const std::string& what) {
  if (!tensor.defined()) return absl::InvalidArgumentError(what + " is an undefined tensor");
  if (tensor.layout() == at::kStrided && TensorTypeOf(tensor.scalar_type())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(what, " is a ", c10::str(tensor.layout()),
                                                 " tensor of ", c10::toString(tensor.scalar_type()),
                                                 ", expected a dense one of real numbers"));
}

TensorBytes BytesOf(std::vector<at::Tensor> tensors) {
  struct Present {
    size_t index = SIZE_MAX;
    at::Tensor tensor;
  };
  const auto all = std::make_shared<const std::vector<at::Tensor>>(std::move(tensors));
  const auto present = std::make_shared<Present>();
  return [all, present](size_t index, int64_t offset_bytes,
                        int64_t bytes) -> absl::StatusOr<absl::string_view> {
    if (present->index != index) {
      present->tensor = (*all)[index].detach().cpu().contiguous();
      present->index = index;
    }
    const auto* const from = static_cast<const char*>(present->tensor.const_data_ptr());
    return absl::string_view(from + offset_bytes, static_cast<size_t>(bytes));
  };
}

absl::StatusOr<at::Tensor> ReadTensor(const StateFile& file, size_t index) {
  const FileTensor& tensor = file.document().tensors[index];
  for (const TypePair& pair : kTypes) {
    if (pair.file != tensor.type) continue;
    at::Tensor read = at::empty(tensor.shape, at::TensorOptions(pair.torch));
    absl::Status got = file.Read(
        tensor, absl::MakeSpan(static_cast<char*>(read.mutable_data_ptr()), read.nbytes()));
    if (!got.ok()) return got;
    return read;
  }
  return absl::InvalidArgumentError(absl::StrCat(file.path(), " has a tensor of ",
                                                 NameOf(tensor.type), ", which is not supported"));
}

}  // namespace optshard
