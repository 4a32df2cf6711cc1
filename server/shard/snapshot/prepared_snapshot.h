// A snapshot that has its memory already and can be opened in no time.
#ifndef OPTSHARD_SERVER_SHARD_SNAPSHOT_PREPARED_SNAPSHOT_H_
#define OPTSHARD_SERVER_SHARD_SNAPSHOT_PREPARED_SNAPSHOT_H_

#include <memory>

#include "server/shard/snapshot/shard_snapshot.h"

namespace optshard {

// Thread-compatible.
class PreparedSnapshot {
 public:
  virtual ~PreparedSnapshot() = default;

  // Opens it at the last finished step; no call may follow. Null where a step is being applied or
  // the state replaced: try again.
  virtual std::unique_ptr<ShardSnapshot> TryOpen() = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SNAPSHOT_PREPARED_SNAPSHOT_H_
