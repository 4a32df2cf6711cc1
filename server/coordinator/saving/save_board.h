// How far a save is, for whoever watches it.
#ifndef OPTSHARD_SERVER_COORDINATOR_SAVING_SAVE_BOARD_H_
#define OPTSHARD_SERVER_COORDINATOR_SAVING_SAVE_BOARD_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "common/ids.h"

namespace optshard {

// Values are stable: they are part of messages.
enum class SavePhase : uint8_t {
  kPreparing = 1,   // owners make memory ready
  kOpening = 2,     // they open their snapshots
  kWriting = 3,     // they write
  kCommitting = 4,  // the manifest, and what is removed for it
};
absl::string_view NameOf(SavePhase phase);  // "preparing", ...

struct SaveProgress {
  int attempt = 0;  // to open the snapshots; the first one is 1
  SavePhase phase = SavePhase::kPreparing;
  absl::optional<StepNumber> step;  // once an owner has opened its snapshot
  Generation generation = 0;        // likewise
  std::string name;                 // of the checkpoint; empty before kWriting
  std::vector<bool> opened;         // by rank
  int written = 0;                  // how many owners have
  int64_t bytes = 0;                // that are written
  int64_t all_bytes = 0;            // of the owners that have begun to write
};

// Thread-safe.
class SaveBoard {
 public:
  // `changed` is called after each change, from any thread, without a lock.
  explicit SaveBoard(std::function<void()> changed) : changed_(std::move(changed)) {}

  void Update(absl::FunctionRef<void(SaveProgress&)> update) {
    {
      absl::MutexLock lock(&mutex_);
      update(progress_);
    }
    changed_();
  }

  SaveProgress Read() const {
    absl::MutexLock lock(&mutex_);
    return progress_;
  }

 private:
  const std::function<void()> changed_;
  mutable absl::Mutex mutex_;
  SaveProgress progress_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_SAVING_SAVE_BOARD_H_
