// What a shard server records of a rank beside parameters and state, in memory that may outlive the
// server: the rank's trainers, the blobs that they keep for their successors, and the last load.
#ifndef OPTSHARD_SERVER_NODE_RANK_RECORD_H_
#define OPTSHARD_SERVER_NODE_RANK_RECORD_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/attach/attachment.h"
#include "common/ids.h"
#include "server/node/step_bytes.h"

namespace optshard {

// A view of memory that is zeros or an earlier record. Of blobs, thread-safe: while the rank's
// thread offers or replaces one, another may ask. Otherwise thread-compatible. A process that is
// killed at any instruction leaves a record that can be read.
class RankRecord {
 public:
  static size_t Bytes();

  // `memory` is aligned to a cache line and outlives this.
  explicit RankRecord(void* memory);

  // The rank's present trainer. Pids are reused, so the process's start time belongs to it.
  struct Trainer {
    pid_t pid = 0;  // 0: nobody
    uint64_t start_ticks = 0;
  };
  Trainer trainer() const;
  void SetTrainer(const Trainer& trainer);

  // Numbers the rank's trainers: 1, 2, ...
  Incarnation NextIncarnation();

  // The token of the load that was the last one to replace what the rank has. Whether it came to
  // its end, the state's ledger says. 0: there was none.
  uint64_t load_token() const;
  void SetLoadToken(uint64_t token);

  // What goes with steps: StepBytes.
  void OfferBlob(StepNumber step, absl::string_view blob);
  void OfferNoBlob(StepNumber step);
  void MoveOffer(StepNumber step, StepNumber finished);
  void ReplaceBlobs(StepNumber finished, absl::string_view blob);
  StepBytes::Kept Blob(StepNumber finished) const;

 private:
  struct Head;

  Head& head() const;

  void* const memory_;
  mutable absl::Mutex mutex_;  // this process's
  StepBytes blobs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_RANK_RECORD_H_
