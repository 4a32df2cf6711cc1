#include "server/shard/inspection/step_board.h"

#include <utility>

#include "server/shard/state/packed_progress.h"

namespace optshard {

StepBoard::StepBoard(std::vector<Hyperparameters> initial)
    : progress_(Pack(StepProgress{})),
      written_(std::make_shared<const std::vector<Hyperparameters>>(std::move(initial))),
      shown_(written_) {}

void StepBoard::SetProgress(const StepProgress& progress) {
  progress_.store(Pack(progress), std::memory_order_release);
}

StepProgress StepBoard::progress() const {
  return Unpack(progress_.load(std::memory_order_acquire));
}

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
