// A checkpoint comes into being: first its directory, last its manifest.
#ifndef OPTSHARD_SERVER_CHECKPOINT_COMMIT_H_
#define OPTSHARD_SERVER_CHECKPOINT_COMMIT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/checkpoint_manifest.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/manifest_json.h"

namespace optshard {

struct NewCheckpoint {
  std::string name;  // "step-000000001000", with ".1" where that was taken
  std::unique_ptr<Directory> directory;
};

// Makes a directory for a checkpoint of that step, which survives a power failure. What an earlier
// attempt left stays. Errors of files. Thread-safe, also against other processes: each call gets a
// directory of its own.
absl::StatusOr<NewCheckpoint> CreateCheckpoint(Directory& root, StepNumber step);

// The manifest that `description` begins: its files, and the step counts and scalar slots of its
// parameters, come from the owners' parts, of which there is one a rank. INVALID_ARGUMENT naming
// what is missing or there twice, and where two owners have counted the same parameter differently.
absl::StatusOr<CheckpointManifest> MakeManifest(CheckpointManifest description,
                                                std::vector<OwnerPart> parts);

// Makes it a checkpoint: once it has returned OK, ListCheckpoints has it whatever happens. Every
// part must have been written by WriteOwnerFile, to the same file system as this process sees.
//
// INVALID_ARGUMENT where the manifest could not be read again: numbers out of range, or too many of
// them. FAILED_PRECONDITION where a part is not here, or somebody removes it (RemoveCheckpoint) at
// the same time; ALREADY_EXISTS where it is committed already; and errors of files. After an error
// it is not a checkpoint, with two exceptions: where the last sync fails it is one now, and may
// cease to be in a power failure; where what is being removed cannot be taken back it may stay one.
// The error says so. Thread-safe, also against other processes.
absl::Status CommitCheckpoint(Directory& checkpoint, const CheckpointManifest& manifest);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_COMMIT_H_
