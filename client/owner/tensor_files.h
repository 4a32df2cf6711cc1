// Tensors of LibTorch as files have them.
#ifndef OPTSHARD_CLIENT_OWNER_TENSOR_FILES_H_
#define OPTSHARD_CLIENT_OWNER_TENSOR_FILES_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/checkpoint/safetensors.h"
#include "server/checkpoint/state_file/file_value.h"
#include "server/checkpoint/state_file/state_file.h"

namespace optshard {

// Nothing for a type that files do not have.
absl::optional<TensorType> TensorTypeOf(at::ScalarType type);

// INVALID_ARGUMENT, saying `what` it is, for a tensor that is not dense or of a type that files do
// not have.
absl::Status CheckWritable(const at::Tensor& tensor, const std::string& what);

// The bytes of tensors by their index. Where one is not contiguous on the CPU it is copied while it
// is written. Takes tensors that CheckWritable finds right. The function is bound to a thread.
TensorBytes BytesOf(std::vector<at::Tensor> tensors);

// Errors of StateFile::Read; INVALID_ARGUMENT for a type that LibTorch does not have. Thread-safe.
absl::StatusOr<at::Tensor> ReadTensor(const StateFile& file, size_t index);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_OWNER_TENSOR_FILES_H_
