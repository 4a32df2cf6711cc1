// The bytes that a trainer keeps with its steps (random state, position in the data), in memory of
// this process: for checkpoints.
#ifndef OPTSHARD_SERVER_SHARD_TRAINER_BLOB_H_
#define OPTSHARD_SERVER_SHARD_TRAINER_BLOB_H_

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "common/ids.h"

namespace optshard {

// Of each step the last bytes that were given with it or with an earlier one. The last two are
// kept. Thread-safe: the trainer's thread writes, any reads.
class TrainerBlob {
 public:
  // Call before `step` begins. These bytes go with it; nothing: those that there are stay.
  void Offer(StepNumber step, absl::optional<absl::string_view> bytes) {
    absl::MutexLock lock(&mutex_);
    // What went with a step that was given up does not count.
    if (offered_.step != 0 && offered_.step < step) kept_ = std::move(offered_);
    offered_ = Blob();
    if (bytes.has_value()) offered_ = {step, std::string(*bytes)};
  }

  // After a skipped call: what was offered with a step belongs to `finished` instead.
  void MoveOffer(StepNumber finished) {
    absl::MutexLock lock(&mutex_);
    if (offered_.step == 0) return;
    kept_ = {finished, std::move(offered_.bytes)};
    offered_ = Blob();
  }

  // Step `finished` is the last one now, and these are its bytes: the state of another life was
  // loaded.
  void Replace(StepNumber finished, absl::string_view bytes) {
    absl::MutexLock lock(&mutex_);
    kept_ = {finished, std::string(bytes)};
    offered_ = Blob();
  }

  // Those of the state after step `finished`; empty: none.
  std::string After(StepNumber finished) const {
    absl::MutexLock lock(&mutex_);
    const bool is_in = offered_.step != 0 && offered_.step <= finished;
    return is_in ? offered_.bytes : kept_.bytes;
  }

 private:
  struct Blob {
    StepNumber step = 0;  // 0: none, of what was offered
    std::string bytes;
  };

  mutable absl::Mutex mutex_;
  Blob kept_ ABSL_GUARDED_BY(mutex_);
  Blob offered_ ABSL_GUARDED_BY(mutex_);  // counts once its step is finished
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_TRAINER_BLOB_H_
