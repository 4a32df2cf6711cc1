#include "server/shard/engine/operation_window.h"

#include <utility>

namespace optshard {

absl::StatusOr<std::unique_ptr<OperationWindow>> OperationWindow::Create(int operations,
                                                                         int staging_buffers,
                                                                         int64_t staging_bytes) {
  std::unique_ptr<OperationWindow> window(new OperationWindow());
  window->limit_ = operations;
  for (int i = 0; i < staging_buffers; ++i) {
    absl::StatusOr<MappedMemory> buffer =
        MappedMemory::Allocate(staging_bytes, "the staging of buckets");
    if (!buffer.ok()) return buffer.status();
    window->free_.push_back(buffer->data());
    window->buffers_.push_back(std::move(*buffer));
  }
  return window;
}

absl::StatusOr<void*> OperationWindow::TakeStaging(absl::Time deadline) {
  while (free_.empty()) {
    absl::Status finished = FinishOldest(deadline);
    if (!finished.ok()) return finished;
  }
  void* const staging = free_.back();
  free_.pop_back();
  return staging;
}

absl::Status OperationWindow::Push(Operation operation, absl::Time deadline) {
  absl::Status finished;
  while (finished.ok() && operations_.size() >= limit_) finished = FinishOldest(deadline);
  // Kept in any case: it has been started, and its buffers are in use.
  operations_.push_back(std::move(operation));
  return finished;
}

absl::Status OperationWindow::Drain(absl::Time deadline) {
  while (!operations_.empty()) {
    absl::Status finished = FinishOldest(deadline);
    if (!finished.ok()) return finished;
  }
  return absl::OkStatus();
}

void OperationWindow::Abandon(absl::Time deadline) {
  for (Operation& operation : operations_) {
    // The plane is broken: this returns promptly, and with an error that is known already.
    operation.ticket->Wait(deadline).IgnoreError();
  }
  operations_.clear();
  free_.clear();
  for (const MappedMemory& buffer : buffers_) free_.push_back(buffer.data());
}

absl::Status OperationWindow::FinishOldest(absl::Time deadline) {
  Operation& oldest = operations_.front();
  absl::Status waited = oldest.ticket->Wait(deadline);
  if (waited.ok() && oldest.done) oldest.done(oldest);
  if (oldest.staging != nullptr) free_.push_back(oldest.staging);
  operations_.pop_front();
  return waited;
}

}  // namespace optshard
