// A snapshot that has its memory already, or finds it in that of others, and can be opened in no
// time.
#ifndef OPTSHARD_SERVER_SHARD_SNAPSHOT_PREPARED_SNAPSHOT_H_
#define OPTSHARD_SERVER_SHARD_SNAPSHOT_PREPARED_SNAPSHOT_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/shard/snapshot/between_calls.h"
#include "server/shard/snapshot/shard_snapshot.h"

namespace optshard {

struct SnapshotContents {
  // Memory for what steps change meanwhile. Without it, a step that begins ends the snapshot
  // (ShardSnapshot::kLost). State on a device is copied in any case: without it, others' copies of
  // the same step will do.
  bool keep_copies = true;
  // Also the parameters of what is owned, as this rank's replica has them: parts of the name
  // kParameterPart, kept but where a device fails to copy them.
  bool parameters = false;
  // Whether they may be copied once it is open, by ShardSnapshot::KeepParameters, which is called
  // before they are read. Where the trainer may write to them, or nobody knows, they are copied
  // when it is opened all the same.
  bool parameters_later = false;
  // Also what the rank's trainer keeps with the step (ShardSnapshot::blob).
  bool blob = false;
  // Whether the state is read. Otherwise one on a device is not copied, and is kLost.
  bool state = true;
};

// Thread-compatible.
class PreparedSnapshot {
 public:
  virtual ~PreparedSnapshot() = default;

  // Opens it at the last finished step, with what is `now`; no call may follow.
  //   ABORTED             a step is being applied, or the state replaced: try again
  //   RESOURCE_EXHAUSTED  others have the memory for its copies: try again
  // and a device's errors, which stay.
  virtual absl::StatusOr<std::unique_ptr<ShardSnapshot>> TryOpen(const BetweenCalls& now) = 0;
};

// After that error of TryOpen.
inline bool MayOpenLater(const absl::Status& error) {
  return absl::IsAborted(error) || absl::IsResourceExhausted(error);
}

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SNAPSHOT_PREPARED_SNAPSHOT_H_
