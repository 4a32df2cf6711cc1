// What a pickle has built, and the value that it stands for.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_TREE_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_TREE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/checkpoint/state_file/file_value.h"

namespace optshard {

// What stands on a pickle's stack, or in another node: lists, tuples and dicts can be in several
// others, and even in themselves.
struct PickleNode {
  enum class Kind : uint8_t {
    kNone,
    kFlag,
    kInt,
    kNumber,
    kText,
    kList,
    kTuple,
    kDict,
    kTensor,
    kCallable,
    kStorageType,
    kStorage,
  };

  Kind kind = Kind::kNone;
  int64_t whole = 0;  // also an index of tensors or storages, or a Callable or TensorType
  double number = 0;
  absl::string_view text;
  std::vector<uint32_t> elements;  // of a dict keys and values in turn
};

absl::string_view NameOf(PickleNode::Kind kind);

// The tree below a node. INVALID_ARGUMENT beyond the limits of ReadPickle, where a dict has a key
// that is no text or int, or one twice, and for nodes that are no values. Thread-safe.
absl::StatusOr<FileValue> PickleTree(absl::Span<const PickleNode> nodes, uint32_t root);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_PICKLE_TREE_H_
