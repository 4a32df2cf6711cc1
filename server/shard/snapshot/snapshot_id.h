// Names a snapshot that several owners open at the same step.
#ifndef OPTSHARD_SERVER_SHARD_SNAPSHOT_SNAPSHOT_ID_H_
#define OPTSHARD_SERVER_SHARD_SNAPSHOT_SNAPSHOT_ID_H_

#include <array>
#include <cstdint>

namespace optshard {

// Not 0. Who asks for the snapshot takes a random number.
using SnapshotId = uint64_t;

// What a vote carries of them. 0: none.
using SnapshotIds = std::array<SnapshotId, 4>;

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SNAPSHOT_SNAPSHOT_ID_H_
