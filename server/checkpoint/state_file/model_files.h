// Parameters as Hugging Face lays a model out: .safetensors files of a bounded size, and an index.
//
//   model.safetensors                      where one file is enough
//   model-00001-of-00003.safetensors ...   otherwise, and beside them
//   model.safetensors.index.json           {"metadata": {"total_size": BYTES},
//                                          "weight_map": {NAME: FILE, ...}}
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_MODEL_FILES_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_MODEL_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/safetensors.h"
#include "server/checkpoint/state_file/file_value.h"

namespace optshard {

constexpr int64_t kDefaultShardBytes = 5'000'000'000;  // Hugging Face's

struct ModelFile {
  std::string name;
  std::vector<size_t> tensors;  // which of the model's, in their order
};

// The tensors, in the given order, go into one file until it would have more than `shard_bytes` of
// them; a larger one has a file of its own. Name, type and shape count, of types and shapes that a
// file can have. Pure.
std::vector<ModelFile> DivideModel(absl::Span<const SafetensorsTensor> tensors,
                                   int64_t shard_bytes);

// Writes the files, the index last, each in place of one of that name (WriteFileAtomically). Others
// that are there stay. Tensors are asked for by their place in `tensors`. Errors as
// WriteSafetensors; after one, some files may be new. Thread-safe.
absl::Status WriteModel(Directory& directory, absl::Span<const SafetensorsTensor> tensors,
                        const TensorBytes& source, int64_t shard_bytes = kDefaultShardBytes,
                        const FileProgress& progress = {});

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_MODEL_FILES_H_
