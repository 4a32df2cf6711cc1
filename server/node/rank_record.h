// What a shard server records of a rank beside parameters and state, in memory that may outlive the
// server: the rank's trainers, and the blobs that they keep for their successors.
#ifndef OPTSHARD_SERVER_NODE_RANK_RECORD_H_
#define OPTSHARD_SERVER_NODE_RANK_RECORD_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/attach/attachment.h"
#include "common/ids.h"

namespace optshard {

// A trainer's bytes, and with which step they came.
struct StepBlob {
  StepNumber step = 0;  // 0: none came yet
  std::string bytes;
};

// A view of memory that is zeros or an earlier record. Of blobs, thread-safe: while the rank's
// thread offers or replaces one, another may ask. Otherwise thread-compatible. A process that is
// killed at any instruction leaves a record that can be read.
class RankRecord {
 public:
  static size_t Bytes();

  // `memory` is aligned to a cache line and outlives this.
  explicit RankRecord(void* memory) : memory_(memory) {}

  // The rank's present trainer. Pids are reused, so the process's start time belongs to it.
  struct Trainer {
    pid_t pid = 0;  // 0: nobody
    uint64_t start_ticks = 0;
  };
  Trainer trainer() const;
  void SetTrainer(const Trainer& trainer);

  // Numbers the rank's trainers: 1, 2, ...
  Incarnation NextIncarnation();

  // Call one of the two before `step` begins: the trainer's blob goes with that step, or no blob
  // does. A blob is valid once its step is finished.
  void OfferBlob(StepNumber step, absl::string_view blob);
  void OfferNoBlob(StepNumber step);
  // After a skipped call: the blob that was offered with `step` belongs to `finished` instead.
  void MoveOffer(StepNumber step, StepNumber finished);
  // Only this blob is left, that of the state after step `finished`, which is not 0.
  void ReplaceBlobs(StepNumber finished, absl::string_view blob);
  // The last valid blob after step `finished`.
  StepBlob Blob(StepNumber finished) const;

 private:
  struct Head;
  struct Slot;

  Head& head() const;
  Slot& slot(int index) const;
  // Which slot holds what counts after `finished`; -1: none does.
  int Current(StepNumber finished) const ABSL_SHARED_LOCKS_REQUIRED(blobs_);
  void Offer(StepNumber step, absl::string_view blob) ABSL_EXCLUSIVE_LOCKS_REQUIRED(blobs_);
  void DropFrom(StepNumber step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(blobs_);

  void* const memory_;
  mutable absl::Mutex blobs_;  // this process's
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_RANK_RECORD_H_
