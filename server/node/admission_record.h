// What a shard server records of one admission of a rank's param groups, in memory that may outlive
// the server: what the rank is with them, whether they have values, and with which hyperparameters
// the last step was made while this admission was the last.
#ifndef OPTSHARD_SERVER_NODE_ADMISSION_RECORD_H_
#define OPTSHARD_SERVER_NODE_ADMISSION_RECORD_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/attach/attachment.h"
#include "server/node/step_bytes.h"

namespace optshard {

// A view of memory that is zeros or an earlier record. Thread-compatible; a process that is killed
// at any instruction leaves a record that can be read.
class AdmissionRecord {
 public:
  static size_t Bytes(const AttachRequest& request);

  // `memory` is aligned to a cache line and outlives this.
  AdmissionRecord(void* memory, size_t bytes) : memory_(memory), bytes_(bytes) {}

  // The first trainer's request, with the groups of this admission and all before it. Written once,
  // before everything else.
  void SetRequest(const AttachRequest& request);
  // INVALID_ARGUMENT where there is none.
  absl::StatusOr<AttachRequest> Request() const;

  // Whether the admission's parameters have the job's first values.
  bool synced() const;
  void SetSynced(bool synced);

  // Of all groups, as the trainer's doorbell has them. Call it after SetRequest, or once Request
  // has returned one.
  StepBytes hyperparameters() const;

 private:
  struct Head;
  Head& head() const;
  char* request() const;
  absl::Status Check() const;

  void* memory_;
  size_t bytes_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_ADMISSION_RECORD_H_
