// What a shard owner has of one generation: the shape that all ranks have alike, and this rank's
// part. It is built whole beside the one that is running, and then takes its place.
#ifndef OPTSHARD_SERVER_SHARD_OWNER_GENERATION_H_
#define OPTSHARD_SERVER_SHARD_OWNER_GENERATION_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "common/clock.h"
#include "common/dataplane/data_plane.h"
#include "common/generation_shape.h"
#include "common/ids.h"
#include "common/link/memory_budget.h"
#include "common/membership/membership.h"
#include "server/shard/engine/step_engine.h"
#include "server/shard/engine/step_exchange.h"
#include "server/shard/inspection/timeline_ring.h"
#include "server/shard/snapshot/agreed_snapshots.h"
#include "server/shard/snapshot/between_calls.h"
#include "server/shard/snapshot/parameter_memory.h"
#include "server/shard/snapshot/snapshot_memory.h"
#include "server/shard/state/device_access.h"
#include "server/shard/state/replacing.h"
#include "server/shard/state/shard_memory.h"
#include "server/shard/state/shard_state.h"
#include "server/shard/state/shard_store.h"
#include "server/update/executor.h"
#include "server/update/group_update.h"
#include "server/update/update_rule.h"

namespace optshard {

// Bound to the step's thread, but for the store and its snapshots, which readers on any thread may
// keep beyond the end of the generation.
class OwnerGeneration {
 public:
  struct Options {
    std::shared_ptr<const GenerationShape> shape;
    GroupUpdates groups;
    Rank rank = 0;
    Incarnation incarnation = 0;
    std::shared_ptr<DataPlane> plane;   // null where there is one rank
    std::shared_ptr<DeviceApi> device;  // where parameters and state lie; null: on the host
    bool state_on_host = false;         // with a device: the state, and the updates
    DriverKind driver = DriverKind::kSimd;
    int threads = 1;
    ExecutorFactory make_executor = StepContext().make_executor;
    int window = StepContext().window;
    int staging_buffers = StepContext().staging_buffers;
    // Of the rank's replica, for snapshots; null: they have no parameters.
    std::shared_ptr<const ParameterPlace> parameters;
    TrainerBlobAfter blob;  // likewise; null: nothing
    // Of First: those that the last finished step was made with, by group.
    std::vector<Hyperparameters> last_hyperparameters;
    // Of the memory for their copies, and for state that is staged.
    MemoryBudget* budget = &MemoryBudget::Unlimited();
    // The memory for their copies. Null: as much as one snapshot of the generation needs, once one
    // is made.
    std::shared_ptr<SnapshotMemory> snapshot_memory;
    TimelineRing* timeline = nullptr;  // outlives the generation
    const Clock* clock = nullptr;      // likewise
  };

  // The owner's first one. `memory` is by admission, or empty (ShardStore::Create). Where it holds
  // state, `progress` is after which step the job goes on, `replacing` what has been replaced in
  // part where that is kTorn, and `values` what the parameters have.
  //   RESOURCE_EXHAUSTED, INTERNAL (memory of another size, a plan that a rule cannot follow)
  static absl::StatusOr<std::unique_ptr<OwnerGeneration>> First(Options options,
                                                                std::vector<ShardMemory> memory,
                                                                const StepProgress& progress,
                                                                Replacing replacing,
                                                                ParameterValues values);

  // The one after `running`, between steps, of which the last one is waited for where it is under
  // way on a device: of a space with one admission more, whose state goes into `added`, or into
  // private memory (ShardStore::Grow). `running` is as it was. Errors as First.
  static absl::StatusOr<std::unique_ptr<OwnerGeneration>> After(
      const OwnerGeneration& running, Options options,
      absl::optional<ShardMemory> added = absl::nullopt);

  // Snapshots lose what they have not copied: another owner may go on with the memory.
  ~OwnerGeneration();

  // The rank's state is this generation's from now on. `former` is the one that it was made after,
  // and can be destroyed. No step follows before all ranks have synchronised: added parameters have
  // no values yet.
  void Begin(OwnerGeneration& former);

  const Options& options() const { return options_; }
  const std::shared_ptr<const GenerationShape>& shape() const { return options_.shape; }
  const GroupUpdates& groups() const { return options_.groups; }
  DataPlane* plane() const { return options_.plane.get(); }
  const std::shared_ptr<ShardStore>& store() const { return store_; }
  // Likewise. They end with the generation.
  const std::shared_ptr<AgreedSnapshots>& snapshots() const { return snapshots_; }
  const std::shared_ptr<SnapshotMemory>& snapshot_memory() const { return snapshot_memory_; }
  ShardState& state() const { return *state_; }
  StepEngine& engine() const { return *engine_; }

 private:
  explicit OwnerGeneration(Options options) : options_(std::move(options)) {}

  ShardStore::Options StoreOptions() const;
  absl::Status MakeEngine(std::shared_ptr<ShardStore> store, ParameterValues values,
                          const StepEngine* before);
  absl::Status MakeSnapshots();
  // Null without a device.
  const std::shared_ptr<DeviceAccess>& device_access() const;
  void WatchPlane() const;

  const Options options_;
  std::shared_ptr<ShardStore> store_;
  std::shared_ptr<DeviceAccess> replica_access_;  // where the store has none; of all generations
  std::shared_ptr<SnapshotMemory> snapshot_memory_;
  std::shared_ptr<AgreedSnapshots> snapshots_;
  std::unique_ptr<ShardState> state_;
  std::unique_ptr<StepEngine> engine_;  // goes before what it uses
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_OWNER_GENERATION_H_
