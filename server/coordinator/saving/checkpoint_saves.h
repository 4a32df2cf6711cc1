// The saves of a coordinator: one at a time of each optimizer, which any number of callers follow.
#ifndef OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINT_SAVES_H_
#define OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINT_SAVES_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/cancellation.h"
#include "common/ids.h"
#include "server/coordinator/saving/checkpoint_driver.h"

namespace optshard {

struct SaveRequest {
  std::string optimizer = "default";
  std::string directory;  // empty: Options::directory
  std::vector<std::string> labels;
  std::string request_id;                     // the same for retries; empty: of none
  absl::optional<StepNumber> step;            // which is to be saved, and no other; absent: any
  absl::optional<int64_t> model_shard_bytes;  // as SaveOrder::model_shard_bytes
  // It is still to come. Until an owner has opened its snapshot, such a save gives way to any
  // other.
  bool awaits_step = false;
  absl::Duration patience = absl::InfiniteDuration();  // as SaveOrder::patience
};

// One save. Thread-safe.
class CheckpointSave {
 public:
  struct Status {
    SaveProgress progress;
    bool is_model = false;
    bool ended = false;
    absl::Status error;     // once it has ended
    SavedCheckpoint saved;  // where that is OK
  };
  Status Read() const;
  const std::string& directory() const { return order_.directory; }

  // `wake` is called after each change, from any thread, without a lock; possibly once more after
  // Unwatch.
  using WatchNumber = int64_t;
  WatchNumber Watch(std::function<void()> wake);
  void Unwatch(WatchNumber watch);

 private:
  friend class CheckpointSaves;
  CheckpointSave(SaveRequest request, Generation generation, SaveOrder order)
      : request_(std::move(request)), generation_(generation), order_(std::move(order)) {}

  // `present`: which generation the ranks follow now.
  bool IsFor(const SaveRequest& request, Generation present) const;
  bool HasFailed() const;
  void End(absl::StatusOr<SavedCheckpoint> result);
  void Wake();

  bool GivesWay() const;

  const SaveRequest request_;
  Cancellation cancellation_;
  const Generation generation_;  // that the ranks followed when it began
  const SaveOrder order_;
  std::shared_ptr<SaveBoard> board_;  // set before anybody sees this
  mutable absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  SavedCheckpoint saved_ ABSL_GUARDED_BY(mutex_);
  WatchNumber next_watch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<WatchNumber, std::function<void()>> watches_ ABSL_GUARDED_BY(mutex_);
};

// Each save has a thread. Thread-safe.
class CheckpointSaves {
 public:
  struct Options {
    CheckpointDriver::Options driver;
    std::string job;        // for log lines
    std::string directory;  // where a request names none
    PrunePolicy prune;      // of what is saved to that directory
  };

  explicit CheckpointSaves(Options options);
  // Shuts down.
  ~CheckpointSaves();

  // Begins a save, or gives the one that the request asks for: with the same request id, or of the
  // same directory, step, generation and kind, be it under way or the optimizer's last one, unless
  // that has failed. The checkpoint has the labels of all who asked for it; who comes with others
  // once it is committed begins another one. Waits for nobody.
  //   INVALID_ARGUMENT     a directory or labels that cannot be (CheckNamedDirectory, CheckLabels);
  //                        a model's bytes in a file are none
  //   FAILED_PRECONDITION  another save of the optimizer is under way: its directory, and how far
  //                        it is; or no directory is known
  //   UNAVAILABLE          after Shutdown
  absl::StatusOr<std::shared_ptr<CheckpointSave>> Begin(const SaveRequest& asked);

  // Gives up what is under way, and waits for it. Idempotent.
  void Shutdown();

  const Options& options() const { return options_; }

 private:
  struct Running {
    std::shared_ptr<CheckpointSave> save;
    std::thread thread;
  };

  void LogResult(const CheckpointSave& save, const absl::StatusOr<SavedCheckpoint>& result) const;

  const Options options_;
  CheckpointDriver driver_;
  absl::Mutex stopping_;  // held by Shutdown; goes before mutex_
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, Running> last_ ABSL_GUARDED_BY(mutex_);  // by optimizer
};

// One line for people: how far a save is.
std::string Summary(const CheckpointSave::Status& status, const std::string& directory);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINT_SAVES_H_
