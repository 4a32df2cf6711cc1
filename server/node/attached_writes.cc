#include "server/node/attached_writes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/errors.h"

namespace optshard {
namespace {

// A thread that has nothing else to do answers: a trainer that does not is stopped.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(5);

}  // namespace

void AttachedWrites::Seat(std::shared_ptr<WriteCountAsker> asker) {
  absl::MutexLock lock(&mutex_);
  asker_ = std::move(asker);
  known_.told.reset();
}

void AttachedWrites::Take(const WriteCount& count) const {
  if (known_.told.value_or(count.writes) != count.writes) ++known_.count;
  known_.told = count.writes;
  known_.are_expected = count.are_expected;
}

void AttachedWrites::Told(const WriteCount& count) {
  absl::MutexLock lock(&mutex_);
  if (asker_ == nullptr) return;
  Take(count);
  ++calls_;
}

void AttachedWrites::BeginLeave() {
  absl::MutexLock lock(&mutex_);
  is_leaving_ = true;
}

void AttachedWrites::EndLeave() {
  absl::MutexLock lock(&mutex_);
  LetGo();
}

void AttachedWrites::Gone() {
  absl::MutexLock lock(&mutex_);
  // Where writes were expected, what counts on there being none has been told of one already.
  if (asker_ != nullptr && !known_.are_expected) ++known_.count;
  LetGo();
}

void AttachedWrites::LetGo() {
  if (asker_ != nullptr) asker_->HangUp();
  asker_ = nullptr;
  is_leaving_ = false;
  known_.are_expected = true;
}

uint64_t AttachedWrites::calls() const {
  absl::MutexLock lock(&mutex_);
  return calls_;
}

uint64_t AttachedWrites::count() const {
  absl::MutexLock lock(&mutex_);
  return known_.count;
}

bool AttachedWrites::are_expected() const {
  absl::MutexLock lock(&mutex_);
  return is_leaving_ || known_.are_expected;
}

absl::StatusOr<uint64_t> AttachedWrites::CountNow() const {
  std::shared_ptr<WriteCountAsker> asker;
  {
    absl::MutexLock lock(&mutex_);
    if (asker_ == nullptr) return known_.count;
    asker = asker_;
  }
  const absl::StatusOr<WriteCount> answer = asker->Ask(kAnswerTimeout);
  absl::MutexLock lock(&mutex_);
  // Meanwhile it has gone, and that was counted.
  if (asker_ != asker) return known_.count;
  if (!answer.ok()) {
    return errors::WithContext(answer.status(),
                               absl::StrCat("the trainer of rank ", rank_,
                                            " was asked whether it has written to its parameters"));
  }
  Take(*answer);
  return known_.count;
}

}  // namespace optshard
