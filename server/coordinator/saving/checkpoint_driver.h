// Saves a checkpoint, or exports a model: has all owners open a snapshot at the same step and write
// it, and commits.
#ifndef OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINT_DRIVER_H_
#define OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINT_DRIVER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/cancellation.h"
#include "common/ids.h"
#include "server/checkpoint/checkpoint_list.h"
#include "server/checkpoint/file_system.h"
#include "server/coordinator/saving/save_board.h"
#include "server/coordinator/saving/save_labels.h"
#include "server/coordinator/saving/saving_owners.h"

namespace optshard {

struct SaveOrder {
  std::string optimizer;
  // Absolute; every process of the job sees the same file system there. Its last component is
  // created where it is missing.
  std::string directory;
  std::shared_ptr<SaveLabels> labels = std::make_shared<SaveLabels>();
  absl::optional<StepNumber> step;  // which is to be saved, and no other; absent: any
  bool awaits_step = false;         // it is still to come
  // For how long owners may take to open their snapshots, where that is less than open_timeout.
  absl::Duration patience = absl::InfiniteDuration();
  // A model instead, with so many bytes of tensors in a file: `directory` itself, which is new or
  // empty. It has no labels, and nothing is pruned for it.
  absl::optional<int64_t> model_shard_bytes;
  PrunePolicy prune;  // what goes once this one is committed; keep_last 0: nothing
};

struct SavedCheckpoint {
  std::string name;  // "step-000000001000"; empty: a model, which is the directory itself
  StepNumber step = 0;
  int64_t bytes = 0;
  std::vector<std::string> removed;  // older ones
  absl::Status removal;              // why not all that were to go have gone
};

// Steps: every owner prepares a snapshot; every owner opens it, at one step; the directory is
// created; every owner writes; the manifest is committed; older checkpoints go. Of a model: the
// directory, under another name, with its files; every owner writes into them; it gets its name
// (model_export.h). Thread-safe: each call is a save of its own.
class CheckpointDriver {
 public:
  struct Options {
    FileSystem* files = nullptr;  // these outlive the driver
    SavingOwners* owners = nullptr;
    absl::Duration prepare_timeout = absl::Seconds(60);
    // Where an owner is in a step: how long that may take.
    absl::Duration open_timeout = absl::Seconds(120);
    // An owner that has written nothing for so long has failed.
    absl::Duration longest_stall = absl::Seconds(120);
    // How long owners may take to notice that a save was given up.
    absl::Duration end_timeout = absl::Seconds(10);
    std::function<absl::Time()> wall_clock = absl::Now;  // for CheckpointManifest::saved_at

    // For how long an owner that has done what it was asked for may hear nothing: the others have
    // as long to do the same. It keeps its snapshot until then.
    absl::Duration longest_silence() const {
      return std::max(prepare_timeout, open_timeout) + end_timeout;
    }
  };

  explicit CheckpointDriver(Options options) : options_(std::move(options)) {}

  // Returns once it is committed, or everything that was written is removed. Errors, with the rank
  // and the file; training goes on, and every earlier checkpoint is as it was:
  //   INVALID_ARGUMENT    a path that is not absolute or has "..", labels that cannot be kept
  //   NOT_FOUND           nobody has joined such an optimizer; the directory above it is missing
  //   FAILED_PRECONDITION not all ranks have joined; owner and coordinator do not see the same
  //                       files
  //   ALREADY_EXISTS      a model's directory is there and not empty
  //   UNAVAILABLE         an owner was lost
  //   DEADLINE_EXCEEDED   errors::PeersTimedOut: these ranks did not prepare, open or write in time
  //   ABORTED             the owners could not open a snapshot together, several times, or not of
  //                       the step that is ordered; or the state was replaced while it was saved:
  //                       save again
  //   RESOURCE_EXHAUSTED  memory for the snapshot, or space on the disk: what is needed and there
  //   UNIMPLEMENTED       an optimizer class steps a group, and it is no model
  //   the reason of the cancellation, and errors of files
  // Where only the last sync of the commit fails, the checkpoint is there all the same; the error
  // says so.
  absl::StatusOr<SavedCheckpoint> Save(const SaveOrder& order, Cancellation& cancellation,
                                       const std::shared_ptr<SaveBoard>& board);

 private:
  class Run;
  const Options options_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINT_DRIVER_H_
