// A checkpoint as files of other programs: its state as a state dict, its parameters as a model.
// Names of parameters are written as EscapeName has them, as in the checkpoint's own files.
#ifndef OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_CHECKPOINT_EXPORT_H_
#define OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_CHECKPOINT_EXPORT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/state_file/file_value.h"

namespace optshard {

// Writes the state of all ranks into one file, whose name says the format (FormatOfName), as
// SaveStateDict of an optimizer does: slots that are kept in 8 bits as float32, options with the
// rules' defaults, the parameters' names under "param_names". What is read is checked by the
// checkpoint's checksums; memory is needed for a MiB of it. Errors of CheckpointReader::Read and
// WriteStateFile. Thread-safe.
absl::Status ExportState(const CheckpointReader& checkpoint, FileSystem& system,
                         absl::string_view path, const FileProgress& progress = {});

// Writes the parameters, in their own types, into a directory that there is (WriteModel). Errors of
// CheckpointReader::Read and WriteModel. Thread-safe.
absl::Status ExportModel(const CheckpointReader& checkpoint, Directory& directory,
                         int64_t shard_bytes, const FileProgress& progress = {});

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_STATE_FILE_CHECKPOINT_EXPORT_H_
