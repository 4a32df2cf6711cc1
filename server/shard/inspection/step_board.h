// What the step's thread tells whoever looks in: progress, the first failure, the hyperparameters.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_STEP_BOARD_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_STEP_BOARD_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/hyperparameters.h"
#include "common/membership/membership.h"

namespace optshard {

// Written by the step's thread, which never waits for a reader; read by any.
class StepBoard {
 public:
  explicit StepBoard(std::vector<Hyperparameters> initial);

  void SetProgress(const StepProgress& progress);
  StepProgress progress() const;

  // Keeps the first one. Not on the path of a step that goes well.
  void SetFailure(const absl::Status& failure);
  absl::Status failure() const;

  // Those of the last step. Shown from the next call on where a reader is just looking.
  void SetHyperparameters(const std::vector<Hyperparameters>& values);
  std::vector<Hyperparameters> hyperparameters() const;

 private:
  using Values = std::shared_ptr<const std::vector<Hyperparameters>>;

  std::atomic<uint64_t> progress_;  // packed_progress.h
  Values written_;                  // the step thread's copy

  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  Values shown_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_STEP_BOARD_H_
