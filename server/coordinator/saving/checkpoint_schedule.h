// When a coordinator saves by itself: every so many steps.
#ifndef OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINT_SCHEDULE_H_
#define OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINT_SCHEDULE_H_

#include <map>
#include <string>

#include "common/ids.h"

namespace optshard {

// Thread-compatible.
class CheckpointSchedule {
 public:
  // 0: never.
  explicit CheckpointSchedule(StepNumber every) : every_(every) {}

  // Whether the optimizer, which has finished this step, has passed a multiple of `every` since
  // Saved, or since it was first asked about.
  bool IsDue(const std::string& optimizer, StepNumber finished) {
    if (every_ == 0) return false;
    const auto at = passed_.try_emplace(optimizer, finished / every_).first;
    // Steps come again after a job has gone back.
    if (finished / every_ < at->second) at->second = finished / every_;
    return finished / every_ > at->second;
  }

  void Saved(const std::string& optimizer, StepNumber finished) {
    if (every_ != 0) passed_[optimizer] = finished / every_;
  }

 private:
  const StepNumber every_;
  std::map<std::string, StepNumber> passed_;  // multiples
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINT_SCHEDULE_H_
