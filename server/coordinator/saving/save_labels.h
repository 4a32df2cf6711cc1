// The labels of a checkpoint that is being saved.
#ifndef OPTSHARD_SERVER_COORDINATOR_SAVING_SAVE_LABELS_H_
#define OPTSHARD_SERVER_COORDINATOR_SAVING_SAVE_LABELS_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/checkpoint/checkpoint_manifest.h"

namespace optshard {

// Who joins a save adds its own until the manifest is made. Thread-safe.
class SaveLabels {
 public:
  explicit SaveLabels(std::vector<std::string> labels = {}) : labels_(std::move(labels)) {}

  // Whether the checkpoint will have them all, or has. No where they come too late, or are more
  // than one can have (CheckLabels); then none of them is added.
  bool Add(const std::vector<std::string>& more) {
    absl::MutexLock lock(&mutex_);
    std::vector<std::string> all = labels_;
    for (const std::string& label : more) {
      if (std::find(all.begin(), all.end(), label) == all.end()) all.push_back(label);
    }
    if (all.size() == labels_.size()) return true;
    if (taken_ || !CheckLabels(all).ok()) return false;
    labels_ = std::move(all);
    return true;
  }

  std::vector<std::string> Read() const {
    absl::MutexLock lock(&mutex_);
    return labels_;
  }

  // For the manifest: no others are added from now on.
  std::vector<std::string> Take() {
    absl::MutexLock lock(&mutex_);
    taken_ = true;
    return labels_;
  }

 private:
  mutable absl::Mutex mutex_;
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> labels_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_SAVING_SAVE_LABELS_H_
