// Writes a model as model_layout.h has it.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_MODEL_FILES_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_MODEL_FILES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/model_layout.h"
#include "server/checkpoint/safetensors.h"
#include "server/checkpoint/state_file/file_value.h"

namespace optshard {

// Writes the files, the index last, each in place of one of that name (WriteFileAtomically). Others
// that are there stay. Tensors are asked for by their place in `tensors`. Errors of LayOutModel, of
// the source, and of files; after one, some files may be new. Thread-safe.
absl::Status WriteModel(Directory& directory, absl::Span<const SafetensorsTensor> tensors,
                        const TensorBytes& source, int64_t shard_bytes = kDefaultShardBytes,
                        const FileProgress& progress = {});

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_MODEL_FILES_H_
