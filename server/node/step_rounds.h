// How the ranks of a server stop together. A round is what all ranks do together on the data plane:
// a step, or the refusal of one. A rank that does a round alone hangs, so all must have done
// equally many before they leave.
#ifndef OPTSHARD_SERVER_NODE_STEP_ROUNDS_H_
#define OPTSHARD_SERVER_NODE_STEP_ROUNDS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/ids.h"

namespace optshard {

// Counts the rounds of the ranks of one optimizer. Thread-safe.
class StepRounds {
 public:
  // From now on the rank follows the plan of this generation. Its rounds are counted from 0 again.
  void Begin(Rank rank, Generation generation) {
    absl::MutexLock lock(&mutex_);
    entered_[rank] = {generation, 0};
  }

  // Whether the rank takes part in one more round. While the server drains, it does as long as some
  // other rank has begun a round that this one has not.
  bool Enter(Rank rank) {
    absl::MutexLock lock(&mutex_);
    Round& entered = entered_[rank];
    if (draining_ && entered >= last_) return false;
    ++entered.second;
    return true;
  }

  // Whether the rank is in a round that some other rank has not begun: it waits for that one.
  bool IsAhead(Rank rank) const {
    absl::MutexLock lock(&mutex_);
    const auto own = entered_.find(rank);
    return own != entered_.end() && own->second.second > 0 &&
           std::any_of(entered_.begin(), entered_.end(),
                       [own](const auto& other) { return other.second < own->second; });
  }

  // From now on no rank begins a round that no other rank has begun. Idempotent.
  void Drain() {
    absl::MutexLock lock(&mutex_);
    if (draining_) return;
    draining_ = true;
    for (const auto& [rank, entered] : entered_) last_ = std::max(last_, entered);
  }

 private:
  using Round = std::pair<Generation, int64_t>;  // its number within the generation

  mutable absl::Mutex mutex_;
  std::map<Rank, Round> entered_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  Round last_ ABSL_GUARDED_BY(mutex_) = {0, 0};
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_STEP_ROUNDS_H_
