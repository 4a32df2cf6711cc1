// What the step's thread shows to readers: progress, the first failure, the hyperparameters.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_STEP_BOARD_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_STEP_BOARD_H_

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/hyperparameters.h"
#include "common/membership/membership.h"
#include "server/shard/state/shared_progress.h"

namespace optshard {

// The step's thread writes, and never waits for a reader. Any thread reads.
class StepBoard {
 public:
  explicit StepBoard(std::vector<Hyperparameters> initial);

  void SetProgress(const StepProgress& progress);
  StepProgress progress() const;

  // Keeps the first failure. Takes a lock, so that no step which succeeds calls it.
  void SetFailure(const absl::Status& failure);
  absl::Status failure() const;

  // Those of the last step. Where a reader holds the lock just now, they are shown by the next
  // call.
  void SetHyperparameters(const std::vector<Hyperparameters>& values);
  std::vector<Hyperparameters> hyperparameters() const;

 private:
  using Values = std::shared_ptr<const std::vector<Hyperparameters>>;

  SharedProgress progress_;
  Values written_;  // the step thread's copy

  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  Values shown_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_STEP_BOARD_H_
