// Time that passes only while the coordinator runs.
#ifndef OPTSHARD_SERVER_COORDINATOR_RUNNING_TIME_H_
#define OPTSHARD_SERVER_COORDINATOR_RUNNING_TIME_H_

#include <algorithm>

#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace optshard {

// A coordinator that was paused (SIGSTOP, a virtual machine that migrates) could hear nobody while
// it was away. Leases and timeouts must not count that time, or a healthy job dies of it. So time
// goes by in steps: from one reading of the clock to the next. The coordinator reads the clock
// every few milliseconds; a longer step means that it was not running, and counts as
// `longest_step`.
//
// Thread-compatible. The result has the clock's origin, minus what was left out so far.
class RunningTime {
 public:
  // After a pause of at least this length the members may have lost their connections.
  static constexpr absl::Duration kLongPause = absl::Seconds(1);

  explicit RunningTime(absl::Duration longest_step) : longest_step_(longest_step) {}

  // `reading` is the clock's. A reading that is older than the one before counts as that one.
  absl::Time Observe(absl::Time reading) {
    const absl::Time before = last_reading_.value_or(reading);
    last_reading_ = std::max(before, reading);
    left_out_ += LeftOut(before, reading);
    const absl::Time now = *last_reading_ - left_out_;
    if (reading - before >= kLongPause) last_long_pause_ = now;
    return now;
  }

  // What Observe returned when the last long pause had ended; InfinitePast without one.
  absl::Time last_long_pause() const { return last_long_pause_; }

  // What Observe would return for this reading. Changes nothing.
  absl::Time At(absl::Time reading) const {
    const absl::Time before = last_reading_.value_or(reading);
    return std::max(before, reading) - left_out_ - LeftOut(before, reading);
  }

 private:
  absl::Duration LeftOut(absl::Time before, absl::Time reading) const {
    return std::max(reading - before - longest_step_, absl::ZeroDuration());
  }

  const absl::Duration longest_step_;
  absl::optional<absl::Time> last_reading_;
  absl::Duration left_out_;
  absl::Time last_long_pause_ = absl::InfinitePast();
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_RUNNING_TIME_H_
