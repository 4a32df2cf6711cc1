// When a coordinator saves by itself: every so many steps.
#ifndef OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINT_SCHEDULE_H_
#define OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINT_SCHEDULE_H_

#include <cmath>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/ids.h"

namespace optshard {

// Looked at once a second or so. Thread-compatible.
class CheckpointSchedule {
 public:
  // What the owners say of their steps may be as old as the first; who opens at a step must be
  // prepared that long before. Nobody prepares longer before it than the second.
  static constexpr absl::Duration kLead = absl::Seconds(2);
  static constexpr absl::Duration kHorizon = absl::Seconds(5);

  // Steps that come much faster or slower than before tell nothing of those to come: a load may
  // have brought them.
  static constexpr double kSteady = 4;

  static constexpr absl::Duration kPause = absl::Seconds(10);
  static constexpr double kMissingSteps = 3;

  // 0: never.
  explicit CheckpointSchedule(StepNumber every) : every_(every) {}

  struct UpcomingStep {
    StepNumber step = 0;
    absl::Duration patience;  // who has waited so long for it need not wait any longer
  };

  // The multiple of `every` that is to be saved when it is finished, where that is soon: by the
  // rate of the steps since the last looks, where that is steady.
  absl::optional<UpcomingStep> Upcoming(const std::string& optimizer, StepNumber finished,
                                        absl::Time now) {
    if (every_ == 0) return absl::nullopt;
    const auto found = looks_.find(optimizer);
    if (found == looks_.end() || finished < found->second.finished) {
      looks_[optimizer] = {finished, now};
      return absl::nullopt;
    }
    Look& look = found->second;
    if (finished > look.finished && now > look.at) {
      const double rate =
          static_cast<double>(finished - look.finished) / absl::ToDoubleSeconds(now - look.at);
      look.is_steady = rate <= kSteady * look.rate && look.rate <= kSteady * rate;
      look.rate = rate;
      look.finished = finished;
      look.at = now;
    }
    const absl::Duration since = now - look.at;
    // Where steps should have come meanwhile, nobody steps any more.
    const bool has_ended =
        since > kPause && look.rate * absl::ToDoubleSeconds(since) > kMissingSteps;
    if (!look.is_steady || has_ended) return absl::nullopt;
    const auto finished_after = [&](absl::Duration ahead) {
      const double steps = std::ceil(look.rate * absl::ToDoubleSeconds(since + ahead));
      return look.finished + static_cast<StepNumber>(steps);
    };
    const StepNumber next = (finished_after(kLead) + every_ - 1) / every_ * every_;
    if (next > finished_after(kHorizon)) return absl::nullopt;
    const double seconds = static_cast<double>(next - look.finished) / look.rate;
    return UpcomingStep{next, kHorizon + 2 * (absl::Seconds(seconds) - since)};
  }

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
  struct Look {
    StepNumber finished = 0;
    absl::Time at;
    double rate = 0;  // steps a second
    bool is_steady = false;
  };

  const StepNumber every_;
  std::map<std::string, StepNumber> passed_;  // multiples
  std::map<std::string, Look> looks_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_SAVING_CHECKPOINT_SCHEDULE_H_
