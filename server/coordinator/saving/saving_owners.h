// The shard owners, as who drives a checkpoint sees them: the seam to gRPC.
#ifndef OPTSHARD_SERVER_COORDINATOR_SAVING_SAVING_OWNERS_H_
#define OPTSHARD_SERVER_COORDINATOR_SAVING_SAVING_OWNERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "common/ids.h"
#include "server/checkpoint/checkpoint_manifest.h"
#include "server/checkpoint/manifest_json.h"
#include "server/checkpoint/safetensors.h"
#include "server/shard/snapshot/between_calls.h"

namespace optshard {

// What an owner has written.
struct WrittenShard {
  OwnerPart part;
  // What the checkpoint is, without files; rank 0's owner says it.
  absl::optional<CheckpointManifest> description;
};

// Where an owner writes its elements of a model, whose files are there.
struct ModelShare {
  std::string directory;
  std::string name;  // of the unfinished model in it
  int64_t shard_bytes = 0;
  uint64_t layout_checksum = 0;  // ModelLayout::checksum
};

// One owner's part in one save: Prepare, then Open, then Write or WriteModel, one after the other;
// OpenedElsewhere once during Open.
// Each calls back at most once, from any thread, perhaps before it returns; Cancel makes one that
// is under way do so soon. Its end ends the save at the owner: callbacks may still come.
// Thread-compatible, but for Cancel.
class OwnerSave {
 public:
  virtual ~OwnerSave() = default;

  // The owner makes the memory ready that a snapshot needs.
  virtual void Prepare(std::function<void(absl::Status)> done) = 0;

  // It opens the snapshot, at the same moment as all others, which it gives.
  virtual void Open(std::function<void(absl::StatusOr<SnapshotMoment>)> done) = 0;

  // Another owner has opened its snapshot at `moment`: this one need not wait for that one's vote.
  virtual void OpenedElsewhere(const SnapshotMoment& moment) = 0;

  // It writes its file into checkpoint `name` of `directory`. `progress` is called with the bytes
  // written and those that there are, before `done`.
  virtual void Write(const std::string& directory, const std::string& name,
                     std::function<void(int64_t bytes, int64_t all)> progress,
                     std::function<void(absl::StatusOr<WrittenShard>)> done) = 0;

  // It writes its elements, and says how many bytes those were.
  virtual void WriteModel(const ModelShare& share,
                          std::function<void(int64_t bytes, int64_t all)> progress,
                          std::function<void(absl::StatusOr<int64_t>)> done) = 0;

  virtual void Cancel() = 0;
};

// Thread-safe.
class SavingOwners {
 public:
  virtual ~SavingOwners() = default;

  // By rank, for one save of all owners of the optimizer: of the state after `at_step`, which is
  // still to come, or of any step; with `is_model`, of the parameters alone, for WriteModel.
  // NOT_FOUND and FAILED_PRECONDITION as Coordinator::GetOwners.
  virtual absl::StatusOr<std::vector<std::unique_ptr<OwnerSave>>> Connect(
      const std::string& optimizer, absl::optional<StepNumber> at_step, bool is_model) = 0;

  // The parameters of a generation, in their order, as tensors of a model. ABORTED where the ranks
  // follow another one by now; NOT_FOUND and FAILED_PRECONDITION as Coordinator::GetPlan.
  virtual absl::StatusOr<std::vector<SafetensorsTensor>> ModelTensors(const std::string& optimizer,
                                                                      Generation generation) = 0;

  // Which generation the ranks follow at present; 0 where not all have joined.
  virtual Generation generation(const std::string& optimizer) = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_SAVING_SAVING_OWNERS_H_
