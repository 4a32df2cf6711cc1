// Prepares a snapshot at all shard owners of a job, over RPC.
#ifndef OPTSHARD_CLIENT_CONTROL_OWNER_SNAPSHOTS_RPC_H_
#define OPTSHARD_CLIENT_CONTROL_OWNER_SNAPSHOTS_RPC_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "common/ids.h"
#include "server/shard/snapshot/between_calls.h"
#include "server/shard/snapshot/prepared_snapshot.h"
#include "server/shard/snapshot/snapshot_id.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace optshard {

struct ConnectedOwner {
  Rank rank = 0;
  std::string name;  // for messages
  std::shared_ptr<grpc::Channel> channel;
};

struct OwnerSnapshots {
  std::vector<ConnectedOwner> owners;
  std::string job;  // empty: whatever job the owners are of
  std::string optimizer;
};

// Never 0, and never the same twice.
SnapshotId NewSnapshotId();

// At all of them at once. Where one refuses, nothing stays prepared. Errors are those of
// PrepareSnapshot of the ShardOwner service, or gRPC's, naming the owner; the reason of
// `cancellation`, which may be null.
absl::Status PrepareSnapshot(const OwnerSnapshots& all, SnapshotId id,
                             const SnapshotContents& contents, absl::Duration timeout,
                             Cancellation* cancellation);

// Another owner has opened it at `moment` (FollowSnapshot of the service). Some may not learn of it
// where one cannot be told at once, or is of an older version, or after the cancellation.
void FollowSnapshot(const OwnerSnapshots& all, SnapshotId id, const SnapshotMoment& moment,
                    Cancellation* cancellation);

// Wherever it is still prepared and can be reached at once.
void ForgetSnapshot(const OwnerSnapshots& all, SnapshotId id);

}  // namespace optshard

#endif  // OPTSHARD_CLIENT_CONTROL_OWNER_SNAPSHOTS_RPC_H_
