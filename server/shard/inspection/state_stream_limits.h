// What ends a stream of ReadState (state_stream_service.h).
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_STATE_STREAM_LIMITS_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_STATE_STREAM_LIMITS_H_

#include "absl/time/time.h"
#include "common/new_thread.h"

namespace optshard {

struct StateStreamLimits {
  int most = 64;  // at once; each has a thread
  // How long a step may be applied, and a call of the trainer's last (AgreedSnapshots).
  absl::Duration patience_with_steps = absl::Seconds(2);
  absl::Duration patience_with_calls = absl::Minutes(1);
  absl::Duration patience_with_client = absl::Seconds(10);  // that takes nothing
  ThreadStarter start_thread = StartSystemThread;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_STATE_STREAM_LIMITS_H_
