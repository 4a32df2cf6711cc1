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
  kUncommitted,  // no manifest: it is being written, or its writer has died
  kDamaged,      // a manifest that cannot be read
};

struct CheckpointEntry {
  std::string name;
  CheckpointName parsed;
  CheckpointState state = CheckpointState::kUncommitted;
  absl::Status damage;  // why, of a damaged one
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

// Committed ones first, the newest first of all: the highest step, of equal steps the last attempt;
// then the others in the same order. Other names in `root` are left out. Errors of files, where
// `root` cannot be read.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(Directory& root);

struct PrunePolicy {
  int keep_last = 0;          // so many of the newest stay; 0: all
  StepNumber keep_every = 0;  // and of the older ones those of its multiples; 0: none
};

struct PruneDecision {
  std::string name;
  bool remove = false;
  std::string reason;  // "the newest", "label \"best\"", ...
};

// In the order of `entries`, which is that of ListCheckpoints. The newest committed one, those with
// a label and damaged ones always stay. What is not committed goes where a newer one is. Pure.
std::vector<PruneDecision> DecidePrune(absl::Span<const CheckpointEntry> entries,
                                       const PrunePolicy& policy);

// Removes a checkpoint: first it ceases to be one, then its files go. An interruption leaves an
// uncommitted one. Errors of files; INVALID_ARGUMENT where it is not a checkpoint's name.
absl::Status RemoveCheckpoint(Directory& root, absl::string_view name);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_CHECKPOINT_CHECKPOINT_LIST_H_
