// A snapshot of what a store keeps.
#ifndef OPTSHARD_SERVER_SHARD_SNAPSHOT_STORE_SNAPSHOT_H_
#define OPTSHARD_SERVER_SHARD_SNAPSHOT_STORE_SNAPSHOT_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/generation_shape.h"
#include "common/ids.h"
#include "server/shard/snapshot/between_calls.h"
#include "server/shard/snapshot/parameter_memory.h"
#include "server/shard/snapshot/prepared_snapshot.h"
#include "server/shard/snapshot/shard_snapshot.h"
#include "server/shard/snapshot/snapshot_memory.h"
#include "server/shard/state/device_access.h"
#include "server/shard/state/shard_store.h"
#include "server/update/group_update.h"

namespace optshard {

struct StoreSnapshotOptions {
  std::shared_ptr<const GenerationShape> shape;
  GroupUpdates groups;
  Rank rank = 0;
  std::shared_ptr<const ShardStore> store;
  std::shared_ptr<const ParameterPlace> parameters;
  std::shared_ptr<DeviceAccess> device_access;  // of parameters on a device; null: on the host
  TrainerBlobAfter blob;                        // null: the trainer keeps nothing
  SnapshotContents contents;
  std::shared_ptr<SnapshotMemory> memory;  // for copies
};

// A snapshot that is not open yet.
//   RESOURCE_EXHAUSTED   as SnapshotMemory::Take
//   FAILED_PRECONDITION  parameters are asked for, and the trainer has given no values yet
absl::StatusOr<std::unique_ptr<PreparedSnapshot>> PrepareStoreSnapshot(
    StoreSnapshotOptions options);

// Opens a snapshot at the last finished step. While a step is being applied it waits for its end,
// for at most `patience`. A step never waits for it. Errors as PrepareStoreSnapshot, and
//   ABORTED  a step was being applied all the time, or the state replaced: try again
// and a device's errors. RESOURCE_EXHAUSTED also where others had the memory all the time.
absl::StatusOr<std::unique_ptr<ShardSnapshot>> OpenStoreSnapshot(
    const StoreSnapshotOptions& options, absl::Duration patience);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SNAPSHOT_STORE_SNAPSHOT_H_
