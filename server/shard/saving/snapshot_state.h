// What an owner writes into a checkpoint, out of a snapshot.
#ifndef OPTSHARD_SERVER_SHARD_SAVING_SNAPSHOT_STATE_H_
#define OPTSHARD_SERVER_SHARD_SAVING_SNAPSHOT_STATE_H_

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "server/checkpoint/checkpoint_manifest.h"
#include "server/checkpoint/owner_writer.h"
#include "server/shard/snapshot/shard_snapshot.h"

namespace optshard {

// The rank's slices, with sources that read the snapshot, which outlives the result; their errors
// are ABORTED where it lost what it had: the state was replaced, or its owner ended. Parts that
// follow one another are one slice, so that a tensor is cut only where its owner's range ends.
// Where every rank owns everything, only rank 0 has slices. `description`
// (DescribeCheckpoint) is of the snapshot's generation.
//   ABORTED   the description is of another one: param groups were added meanwhile; save again
//   INTERNAL  the snapshot has a part that the description lacks
// Thread-safe.
absl::StatusOr<OwnerState> OwnerStateOf(const ShardSnapshot& snapshot,
                                        const CheckpointManifest& description, Rank rank);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SAVING_SNAPSHOT_STATE_H_
