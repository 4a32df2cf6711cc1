// The answers of all owners to one call of a save.
#ifndef OPTSHARD_SERVER_COORDINATOR_SAVING_OWNER_ANSWERS_H_
#define OPTSHARD_SERVER_COORDINATOR_SAVING_OWNER_ANSWERS_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/cancellation.h"
#include "common/errors.h"
#include "common/ids.h"

namespace optshard {

// Thread-safe.
template <typename T>
class OwnerAnswers {
 public:
  explicit OwnerAnswers(size_t owners)
      : owners_(owners),
        answers_(owners),
        answered_(owners, false),
        heard_(owners, absl::Now()),
        missing_(owners) {}

  // Only a rank's first answer counts.
  void Take(Rank rank, absl::StatusOr<T> answer) {
    absl::MutexLock lock(&mutex_);
    if (answered_[rank]) return;
    answered_[rank] = true;
    --missing_;
    changed_ = true;
    if (answer.ok()) {
      answers_[rank] = *std::move(answer);
    } else if (error_.ok()) {
      error_ = errors::WithContext(answer.status(), absl::StrCat("rank ", rank));
    }
  }

  // The rank works on its answer.
  void Hear(Rank rank) {
    absl::MutexLock lock(&mutex_);
    heard_[rank] = absl::Now();
  }

  // Waits for all. The first error, with its rank; errors::PeersTimedOut naming those of which
  // nothing was heard for `patience`; the reason of the cancellation.
  absl::StatusOr<std::vector<T>> Await(absl::Duration patience, Cancellation& cancellation,
                                       absl::string_view what) {
    absl::Status all = AwaitAllBut(0, patience, cancellation, what);
    if (!all.ok()) return all;
    absl::MutexLock lock(&mutex_);
    return std::move(answers_);
  }

  struct First {
    T answer;
    std::vector<Rank> missing;  // which have not answered yet
  };

  // Waits for one. Errors as Await.
  absl::StatusOr<First> AwaitFirst(absl::Duration patience, Cancellation& cancellation,
                                   absl::string_view what) {
    absl::Status one = AwaitAllBut(owners_ - 1, patience, cancellation, what);
    if (!one.ok()) return one;
    absl::MutexLock lock(&mutex_);
    if (!error_.ok()) return error_;  // meanwhile
    First first;
    for (size_t rank = 0; rank < answered_.size(); ++rank) {
      if (answered_[rank]) {
        first.answer = answers_[rank];
      } else {
        first.missing.push_back(static_cast<Rank>(rank));
      }
    }
    return first;
  }

  // Whether nobody is still at it within `timeout`.
  bool AwaitEnd(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(
                                       +[](size_t* missing) { return *missing == 0; }, &missing_),
                                   timeout);
  }

 private:
  absl::Status AwaitAllBut(size_t missing, absl::Duration patience, Cancellation& cancellation,
                           absl::string_view what) {
    const Cancellation::Callback wake(&cancellation, [this] {
      absl::MutexLock lock(&mutex_);
      changed_ = true;
    });
    absl::MutexLock lock(&mutex_);
    while (true) {
      if (!error_.ok()) return error_;
      if (missing_ <= missing) return absl::OkStatus();
      absl::Status cancelled = cancellation.reason();
      if (!cancelled.ok()) return cancelled;
      const absl::Time now = absl::Now();
      absl::Time next = absl::InfiniteFuture();
      std::vector<Rank> late;
      for (size_t rank = 0; rank < answered_.size(); ++rank) {
        if (answered_[rank]) continue;
        if (heard_[rank] + patience <= now) late.push_back(static_cast<Rank>(rank));
        next = std::min(next, heard_[rank] + patience);
      }
      if (!late.empty()) return errors::PeersTimedOut(late, what);
      changed_ = false;
      mutex_.AwaitWithDeadline(absl::Condition(&changed_), next);
    }
  }

  const size_t owners_;
  absl::Mutex mutex_;
  std::vector<T> answers_ ABSL_GUARDED_BY(mutex_);  // by rank
  std::vector<bool> answered_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Time> heard_ ABSL_GUARDED_BY(mutex_);
  size_t missing_ ABSL_GUARDED_BY(mutex_);
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_SAVING_OWNER_ANSWERS_H_
