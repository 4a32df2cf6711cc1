// The tensors of a pickle.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_TENSORS_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_TENSORS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/checkpoint/state_file/file_value.h"
#include "server/checkpoint/state_file/pickle_tree.h"

namespace optshard {

// What to do about a file whose pickle is refused.
constexpr char kSavePlainValues[] =
    "nothing of it was run. Save plain tensors, numbers, texts, dicts, lists and tuples, as "
    "torch.save(optimizer.state_dict(), path) does with torch's optimizers";

// What PyTorch's functions would make of their arguments. Indices of nodes lie within `nodes`.
// Thread-compatible.
class PickleTensors {
 public:
  // Of a persistent id, ("storage", torch.FloatStorage, key, location, elements); the index is that
  // of a storage as a certain type, and several may have one key. INVALID_ARGUMENT for any other.
  absl::StatusOr<size_t> AddStorage(absl::Span<const PickleNode> nodes, const PickleNode& id);

  // Of the arguments of _rebuild_tensor_v2: (storage, offset, size, stride, requires_grad, hooks),
  // and metadata in newer ones. INVALID_ARGUMENT for others, and for a tensor with elements outside
  // its storage or more of them than that has.
  absl::StatusOr<size_t> AddTensor(absl::Span<const PickleNode> nodes,
                                   absl::Span<const uint32_t> arguments);

  std::vector<FileTensor> TakeTensors() { return std::move(tensors_); }
  // With their keys as names, and as many bytes as the tensors' types need.
  std::vector<FileStorage> TakeStorages() { return std::move(storages_); }

 private:
  struct TypedStorage {
    size_t storage = 0;  // of storages_
    TensorType type = TensorType::kF32;
    int64_t elements = 0;
  };

  std::vector<FileTensor> tensors_;
  std::vector<FileStorage> storages_;
  std::vector<TypedStorage> typed_;
  absl::flat_hash_map<std::string, size_t> storage_of_;  // by key
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_TENSORS_H_
