// One owner's part in the saving of a checkpoint, or in the export of a model.
#ifndef OPTSHARD_SERVER_SHARD_SAVING_SHARD_SAVE_H_
#define OPTSHARD_SERVER_SHARD_SAVING_SHARD_SAVE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/cancellation.h"
#include "common/ids.h"
#include "common/log.h"
#include "common/new_thread.h"
#include "server/checkpoint/checkpoint_manifest.h"
#include "server/checkpoint/file_system.h"
#include "server/checkpoint/manifest_json.h"
#include "server/checkpoint/owner_writer.h"
#include "server/shard/inspection/shard_view_registry.h"
#include "server/shard/saving/writer_slots.h"
#include "server/shard/snapshot/agreed_snapshots.h"
#include "server/shard/snapshot/between_calls.h"
#include "server/shard/snapshot/shard_snapshot.h"
#include "server/shard/snapshot/snapshot_id.h"

namespace optshard {

// Prepare, Open, Copy and Write, or WriteModel, come in this order, each once, from one thread;
// OpenedElsewhere from any, during Open. Its end closes the snapshot.
class ShardSave {
 public:
  struct Options {
    ShardViewRegistry* views = nullptr;  // these outlive it
    FileSystem* files = nullptr;
    WriterSlots* writers = nullptr;
    Cancellation* cancellation = nullptr;  // ends what waits, and Write
    // For the memory of a snapshot that another save has given up and not given back yet.
    absl::Duration memory_patience = absl::ZeroDuration();
    ThreadStarter start_thread = StartSystemThread;
  };

  struct Shard {
    ShardViewRegistry::Selector selector;
    std::string job;  // empty: any
    SnapshotId snapshot = 0;
    absl::optional<StepNumber> at_step;  // which the snapshot is of; absent: any
    bool is_model = false;               // the parameters alone, for WriteModel
  };

  struct Written {
    OwnerPart part;
    absl::optional<CheckpointManifest> description;  // of rank 0
  };

  explicit ShardSave(Options options);
  ~ShardSave();

  // Errors as ShardViewRegistry::Find, AgreedSnapshots::Prepare and DescribeCheckpoint; NOT_FOUND
  // where the rank is of another job; the reason of the cancellation.
  absl::Status Prepare(const Shard& shard);

  // Errors as AgreedSnapshots::Open; the reason of the cancellation, which forgets the snapshot.
  absl::StatusOr<SnapshotMoment> Open(absl::Duration patience);

  // As AgreedSnapshots::OpenedElsewhere.
  void OpenedElsewhere(const SnapshotMoment& moment);

  // Copies the parameters, and has any state copied from now on, so that the trainer's next step
  // need not. Nothing here waits for a writer. Errors as ShardSnapshot::KeepParameters.
  absl::Status Copy();

  // Writes the rank's file into `directory`/`name`, with idle I/O priority, once one of the
  // process's writers is free; until then `progress` says 0 of 0, once a second. From then on the
  // thread has a low priority, for good. Errors as WriteOwnerFile, OwnerStateOf and
  // ShardSnapshot::KeepParameters; INVALID_ARGUMENT for a directory or a name that a peer may not
  // give (CheckNamedDirectory, ParseCheckpointName).
  absl::StatusOr<Written> Write(const std::string& directory, const std::string& name,
                                const std::function<void(int64_t done, int64_t all)>& progress);

  struct ModelPlace {
    std::string directory;
    std::string name;  // of the unfinished model in it
    int64_t shard_bytes = 0;
    uint64_t layout_checksum = 0;  // ModelLayout::checksum, as the coordinator has it
  };

  // Writes the rank's elements into the model's files, as Write does, and returns their bytes.
  // Errors as WriteModelShare, LayOutModel, OwnerStateOf and ShardSnapshot::KeepParameters;
  // INVALID_ARGUMENT as Write; FAILED_PRECONDITION where the layouts differ.
  absl::StatusOr<int64_t> WriteModel(
      const ModelPlace& place, const std::function<void(int64_t done, int64_t all)>& progress);

 private:
  class CopyingAhead;
  // Writes to a directory, with the options for that.
  using Writing = std::function<absl::Status(Directory&, const OwnerWriteOptions&)>;

  // Once a writer of the process is free.
  absl::Status WriteTo(const std::string& directory, const std::string& name,
                       const std::function<void(int64_t done, int64_t all)>& progress,
                       const Writing& write);

  LogContext MakeLogContext() const;

  const Options options_;
  Shard shard_;
  Rank rank_ = 0;
  std::shared_ptr<AgreedSnapshots> snapshots_;
  CheckpointManifest description_;
  std::unique_ptr<ShardSnapshot> snapshot_;  // once it is open
  std::unique_ptr<CopyingAhead> copying_;    // goes before it
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SAVING_SHARD_SAVE_H_
