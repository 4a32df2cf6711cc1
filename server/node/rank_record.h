// What a shard server remembers of a rank beside its parameters and its state, in memory that may
// outlive it: who its trainers were, and what they have left for each other.
#ifndef OPTSHARD_SERVER_NODE_RANK_RECORD_H_
#define OPTSHARD_SERVER_NODE_RANK_RECORD_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/attach/attachment.h"
#include "common/ids.h"

namespace optshard {

// A trainer's bytes, and with which step they came.
struct StepBlob {
  StepNumber step = 0;  // 0: none came yet
  std::string bytes;
};

// A view of memory that is zeros or an earlier record. Thread-compatible; a process that is killed
// at any instruction leaves a record that can be read.
class RankRecord {
 public:
  static size_t Bytes(const AttachRequest& first);

  // `memory` is aligned to a cache line and outlives this.
  explicit RankRecord(void* memory) : memory_(memory) {}

  // The first trainer's request: what the rank is. Written once, before all else.
  void SetFirstRequest(const AttachRequest& first);
  absl::StatusOr<AttachRequest> FirstRequest() const;

  // Whether the parameters have the job's first values: from then on the rank is worth keeping.
  bool synced() const;
  void SetSynced();

  // Who has the rank. A pid may be given again; when its process was started tells them apart.
  struct Trainer {
    pid_t pid = 0;  // 0: nobody
    uint64_t start_ticks = 0;
  };
  Trainer trainer() const;
  void SetTrainer(const Trainer& trainer);

  // 1, 2, ...: numbers the rank's trainers.
  Incarnation NextIncarnation();

  // The trainer's blob goes with `step`, which is about to begin; or none does. It counts once that
  // step is finished.
  void OfferBlob(StepNumber step, absl::string_view blob);
  void OfferNoBlob(StepNumber step);
  // What was offered with `step` counts as of `finished` instead: the step was skipped.
  void MoveOffer(StepNumber step, StepNumber finished);
  // After step `finished`: the last that counts.
  StepBlob Blob(StepNumber finished) const;

 private:
  struct Head;
  struct Slot;

  Head& head() const;
  Slot& slot(int index) const;
  char* request() const;
  // Which slot holds what counts after `finished`; -1: none does.
  int Current(StepNumber finished) const;

  void* memory_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_RANK_RECORD_H_
