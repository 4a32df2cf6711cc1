// Which checkpoints there are, which of them stay, and how one goes.
#ifndef OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_LIST_H_
#define OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_LIST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "server/checkpoint/checkpoint_manifest.h"
#include "server/checkpoint/file_system.h"

namespace optshard {

// Of a checkpoint's directory: "step-000000001000", or "step-000000001000.1" for attempt 1.
struct CheckpointName {
  StepNumber step = 0;
  int attempt = 0;
};
std::string CheckpointNameText(const CheckpointName& name);
// Nothing for what CheckpointNameText does not make.
absl::optional<CheckpointName> ParseCheckpointName(absl::string_view text);

enum class CheckpointState {
  kCommitted,
  kUncommitted,  // no manifest: it is being written, or its writer has died; or being removed
  kDamaged,      // what is there is not what was saved
  kUnreadable,   // nobody knows: no permission, a newer format, too many open files
};

struct CheckpointEntry {
  std::string name;
  CheckpointName parsed;
  CheckpointState state = CheckpointState::kUncommitted;
  absl::Status problem;                           // of a damaged or unreadable one
  absl::Time modified_at = absl::InfinitePast();  // the last change of the directory or a file
  // Of a committed one:
  std::string job;
  std::string optimizer;
  int world_size = 0;
  int64_t bytes = 0;
  absl::Time saved_at = absl::UnixEpoch();
  std::vector<std::string> labels;
};

// The manifest of a checkpoint, checked. NOT_FOUND: it is not committed. Errors of ParseManifest,
// with its path, and of files.
absl::StatusOr<CheckpointManifest> ReadManifest(Directory& checkpoint);

// Whether the checkpoint is of the step that its directory's name says; DATA_LOSS otherwise.
absl::Status CheckStep(const Directory& checkpoint, const CheckpointManifest& manifest,
                       StepNumber named);

// Committed ones first, whose parts are there in their sizes: the one saved last first of all, of
// equal ones that of the highest step and attempt. Then the others, the highest step and attempt
// first. Other names in `root` are left out. Errors of files, where `root` cannot be read.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(Directory& root);

struct PrunePolicy {
  int keep_last = 0;          // so many of the newest of each job and optimizer stay; 0: all
  StepNumber keep_every = 0;  // and of the older ones those of its multiples; 0: none
};

struct PruneDecision {
  std::string name;
  bool remove = false;
  std::string reason;  // "the newest", "label \"best\"", ...
};

// In the order of `entries`, which is that of ListCheckpoints. The newest committed one of each job
// and optimizer, those with a label, damaged and unreadable ones always stay. What is not committed
// goes where a checkpoint was saved more than an hour after it last changed. Pure.
std::vector<PruneDecision> DecidePrune(absl::Span<const CheckpointEntry> entries,
                                       const PrunePolicy& policy);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_LIST_H_
