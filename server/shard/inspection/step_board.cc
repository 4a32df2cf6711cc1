#include "server/shard/inspection/step_board.h"

#include <utility>

namespace optshard {

StepBoard::StepBoard(std::vector<Hyperparameters> initial)
    : written_(std::make_shared<const std::vector<Hyperparameters>>(std::move(initial))),
      shown_(written_) {
  progress_.Store(StepProgress());
}

void StepBoard::SetProgress(const StepProgress& progress) { progress_.Store(progress); }

StepProgress StepBoard::progress() const { return progress_.Load(); }

void StepBoard::SetFailure(const absl::Status& failure) {
  absl::MutexLock lock(&mutex_);
  failure_.Update(failure);
}

absl::Status StepBoard::failure() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

void StepBoard::SetHyperparameters(const std::vector<Hyperparameters>& values) {
  if (*written_ != values) written_ = std::make_shared<const std::vector<Hyperparameters>>(values);
  if (!mutex_.TryLock()) return;
  shown_ = written_;
  mutex_.Unlock();
}

std::vector<Hyperparameters> StepBoard::hyperparameters() const {
  Values shown;
  {
    absl::MutexLock lock(&mutex_);
    shown = shown_;
  }
  return *shown;
}

}  // namespace optshard
