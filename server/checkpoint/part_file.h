// A rank's file of a committed checkpoint, as the manifest describes it.
#ifndef OPTSHARD_SERVER_CHECKPOINT_PART_FILE_H_
#define OPTSHARD_SERVER_CHECKPOINT_PART_FILE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/checkpoint/checkpoint_manifest.h"
#include "server/checkpoint/file_system.h"

namespace optshard {

// Opens it and compares its size. DATA_LOSS naming the file where it is missing, too short or too
// long. Errors of files. Thread-safe.
absl::StatusOr<std::unique_ptr<File>> OpenPart(Directory& checkpoint,
                                               const CheckpointFile& described);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_PART_FILE_H_
