// How long to wait before a process that died is started again.
#ifndef OPTSHARD_SERVER_NODE_RESTART_PAUSES_H_
#define OPTSHARD_SERVER_NODE_RESTART_PAUSES_H_

#include <algorithm>
#include <utility>

#include "absl/time/time.h"

namespace optshard {

// There is no pause after a long life. After short lives the pauses are none, `first`, then twice
// as long each time, up to `longest`. Thread-compatible.
class RestartPauses {
 public:
  RestartPauses(absl::Duration first, absl::Duration longest, absl::Duration long_life)
      : first_(first), longest_(longest), long_life_(long_life) {}

  // The pause before the next start. `lived` is how long the process that has just died had lived.
  absl::Duration Next(absl::Duration lived) {
    if (lived > long_life_) next_ = absl::ZeroDuration();
    const absl::Duration after = next_ == absl::ZeroDuration() ? first_ : 2 * next_;
    return std::exchange(next_, std::min(after, longest_));
  }

 private:
  const absl::Duration first_;
  const absl::Duration longest_;
  const absl::Duration long_life_;
  absl::Duration next_ = absl::ZeroDuration();
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_RESTART_PAUSES_H_
