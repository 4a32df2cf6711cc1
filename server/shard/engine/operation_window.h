// The data plane operations that are under way, oldest first, and the staging memory that they use.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_OPERATION_WINDOW_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_OPERATION_WINDOW_H_

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/bucket.h"
#include "common/dataplane/data_plane.h"
#include "server/shard/state/mapped_memory.h"

namespace optshard {

// Limits how many operations are under way and how much staging memory they take. At a limit it
// waits for the oldest operation. Bound to the step's thread.
class OperationWindow {
 public:
  struct Operation {
    std::unique_ptr<Ticket> ticket;
    const Bucket* bucket = nullptr;
    void* staging = nullptr;  // from TakeStaging; goes back when the operation is complete
    absl::Time start;
    // Called once it is complete, before the staging goes back; not after a failure.
    std::function<void(const Operation&)> done;
  };

  // `staging_buffers` of `staging_bytes` each. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<OperationWindow>> Create(int operations,
                                                                 int staging_buffers,
                                                                 int64_t staging_bytes);

  // A staging buffer; waits for operations until one is free. After an error: Abandon.
  absl::StatusOr<void*> TakeStaging(absl::Time deadline);

  // Where the window is full, waits for the oldest operation first. After an error: Abandon.
  absl::Status Push(Operation operation, absl::Time deadline);

  // Waits for all, in order. After an error: Abandon.
  absl::Status Drain(absl::Time deadline);

  // Ends the operations that are under way on a plane that has been aborted. Afterwards no buffer
  // is in use.
  void Abandon(absl::Time deadline);

 private:
  OperationWindow() = default;
  absl::Status FinishOldest(absl::Time deadline);

  size_t limit_ = 1;
  std::deque<Operation> operations_;
  std::vector<MappedMemory> buffers_;
  std::vector<void*> free_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_OPERATION_WINDOW_H_
