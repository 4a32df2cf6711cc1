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
  known_.are_expected = true;
}

void AttachedWrites::Take(const WriteCount& count) const {
  if (known_.told.value_or(count.writes) != count.writes) ++known_.count;
  known_.told = count.writes;
  known_.are_expected = count.are_expected;
}

void AttachedWrites::Told(const WriteCount& count) {
  absl::MutexLock lock(&mutex_);
  if (asker_ != nullptr) Take(count);
}

void AttachedWrites::Leave() {
  absl::MutexLock lock(&mutex_);
  asker_ = nullptr;
  known_.are_expected = true;
}

void AttachedWrites::Gone() {
  absl::MutexLock lock(&mutex_);
  if (asker_ == nullptr) return;
  const absl::optional<WriteCount> last = asker_->HangUp();
  if (last.has_value()) {
    Take(*last);
  } else {
    ++known_.count;
  }
  asker_ = nullptr;
  known_.are_expected = true;
}

uint64_t AttachedWrites::count() const {
  absl::MutexLock lock(&mutex_);
  return known_.count;
}

bool AttachedWrites::are_expected() const {
  absl::MutexLock lock(&mutex_);
  return known_.are_expected;
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
