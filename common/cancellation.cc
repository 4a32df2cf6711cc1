#include "common/cancellation.h"

#include <utility>

namespace optshard {

void Cancellation::Cancel(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (!reason_.ok() || reason.ok()) return;
    reason_ = reason;
  }
  while (true) {
    Callback* callback;
    {
      absl::MutexLock lock(&mutex_);
      running_ = nullptr;
      if (callbacks_.empty()) return;
      callback = callbacks_.front();
      callbacks_.pop_front();
      running_ = callback;
    }
    callback->function_();
  }
}

absl::Status Cancellation::reason() const {
  absl::MutexLock lock(&mutex_);
  return reason_;
}

bool Cancellation::WaitFor(absl::Duration timeout) const {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(this, &Cancellation::Cancelled), timeout);
}

Cancellation::Callback::Callback(Cancellation* cancellation, std::function<void()> function)
    : cancellation_(cancellation), function_(std::move(function)) {
  if (cancellation_ == nullptr) return;
  {
    absl::MutexLock lock(&cancellation_->mutex_);
    if (!cancellation_->Cancelled()) {
      cancellation_->callbacks_.push_back(this);
      return;
    }
  }
  function_();
}

Cancellation::Callback::~Callback() {
  if (cancellation_ == nullptr) return;
  absl::MutexLock lock(&cancellation_->mutex_);
  cancellation_->callbacks_.remove(this);
  const auto over = [this]() ABSL_SHARED_LOCKS_REQUIRED(cancellation_->mutex_) {
    return cancellation_->running_ != this;
  };
  cancellation_->mutex_.Await(absl::Condition(&over));
}

}  // namespace optshard
