// Where the parameters of a model lie as Hugging Face has them: .safetensors files of a bounded
// size, and an index.
//
//   model.safetensors                      where one file is enough
//   model-00001-of-00003.safetensors ...   otherwise, and beside them
//   model.safetensors.index.json           {"metadata": {"total_size": BYTES},
//                                          "weight_map": {NAME: FILE, ...}}
#ifndef OPTSHARD_SERVER_CHECKPOINT_MODEL_LAYOUT_H_
#define OPTSHARD_SERVER_CHECKPOINT_MODEL_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/checkpoint/safetensors.h"

namespace optshard {

constexpr int64_t kDefaultShardBytes = 5'000'000'000;  // Hugging Face's
constexpr char kModelIndexName[] = "model.safetensors.index.json";

struct ModelFile {
  std::string name;
  SafetensorsLayout layout;
  std::vector<size_t> tensors;  // which of the model's those of the layout are, in its order
};

// Thread-compatible value type.
struct ModelLayout {
  // Of a tensor's first byte.
  struct Place {
    size_t file = 0;
    int64_t offset_bytes = 0;  // in the file
    int64_t bytes = 0;
    int64_t element_bytes = 1;
  };

  std::vector<ModelFile> files;  // one at least
  std::vector<Place> places;     // by tensor
  std::string index;             // what kModelIndexName has; empty where there is one file
  int64_t tensor_bytes = 0;      // of all

  // With headers and index.
  int64_t file_bytes() const;
  // Of all that is not a tensor's: equal where two processes lay out the same model alike.
  uint64_t checksum() const;
};

// Of a parameter: its name as files of checkpoints have it (EscapeName).
SafetensorsTensor ModelTensor(absl::string_view parameter, TensorType type,
                              std::vector<int64_t> shape);

// The tensors, in the given order, go into one file until it would have more than `shard_bytes` of
// them; a larger one has a file of its own. Name, type and shape count. A pure function: whoever
// has the same tensors comes to the same bytes. INVALID_ARGUMENT as LayOutSafetensors, and for more
// than 99,999 files. Thread-safe.
absl::StatusOr<ModelLayout> LayOutModel(absl::Span<const SafetensorsTensor> tensors,
                                        int64_t shard_bytes);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_MODEL_LAYOUT_H_
