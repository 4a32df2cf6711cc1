// A model comes into being that shard owners write together. It has its name last:
//
//   PARENT/NAME.0123456789abcdef0123456789abcdef.unfinished/
//       model-00001-of-00002.safetensors    of its full size from the beginning, with its header
//       ...                                 every owner's bytes, at their places
//       model.safetensors.index.json
//   PARENT/NAME/                            the same, once all of it is on the device
//
// So a directory of the name is whole, whatever fails, and whenever. The files are
// model_layout.h's.
#ifndef OPTSHARD_SERVER_CHECKPOINT_MODEL_EXPORT_H_
#define OPTSHARD_SERVER_CHECKPOINT_MODEL_EXPORT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/checkpoint/checkpoint_manifest.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/model_layout.h"
#include "server/checkpoint/owner_writer.h"
#include "server/checkpoint/safetensors.h"

namespace optshard {

// The parameters as tensors, in their order.
std::vector<SafetensorsTensor> ModelTensorsOf(absl::Span<const CheckpointParameter> parameters);

// Those of an owner that are of parameters, not of their slots.
std::vector<OwnerSlice> ModelSlicesOf(absl::Span<const CheckpointParameter> parameters,
                                      std::vector<OwnerSlice> slices);

struct UnfinishedModel {
  std::string name;
  std::unique_ptr<Directory> directory;
};

// Whether a directory has such a name.
bool IsUnfinishedModelName(absl::string_view name);

// Whether a model may get the name: there is nothing of it, or an empty directory. ALREADY_EXISTS
// where there is more; FAILED_PRECONDITION where it is no directory; errors of files. Thread-safe.
absl::Status CheckModelName(Directory& parent, absl::string_view name);

// Makes the directory and its files. After an error nothing stays that could be removed.
// RESOURCE_EXHAUSTED where there is too little space, with how much is needed. Errors of files.
// Thread-safe.
absl::StatusOr<UnfinishedModel> CreateModel(Directory& parent, absl::string_view name,
                                            const ModelLayout& layout);

// Writes what an owner has, each slice to its place, and returns how many bytes that are once they
// would survive a power failure. A slice's parameter is the tensor's place in the layout. Any
// number of owners write at once, also into one file. INVALID_ARGUMENT for slices that no tensor
// has; FAILED_PRECONDITION where the files are not there; the sources' errors and those of files;
// the reason of the cancellation. Thread-safe.
absl::StatusOr<int64_t> WriteModelShare(Directory& unfinished, const ModelLayout& layout,
                                        absl::Span<const OwnerSlice> slices,
                                        const OwnerWriteOptions& options = {});

// Gives it its name, once all owners have written; what was at the name is an empty directory at
// most. Errors as CheckModelName, and of files. After one it has the name only where that was the
// last sync's, or the renaming's that had been done all the same: it is whole then. Thread-safe.
absl::Status CommitModel(Directory& parent, const UnfinishedModel& model, absl::string_view name,
                         const ModelLayout& layout);

// Removes one that is given up. OK where it is not there. Errors of files. Thread-safe.
absl::Status RemoveUnfinishedModel(Directory& parent, absl::string_view unfinished);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_MODEL_EXPORT_H_
