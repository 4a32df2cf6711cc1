// How long to wait between attempts at something that fails.
#ifndef OPTSHARD_COMMON_MEMBERSHIP_RETRY_PAUSE_H_
#define OPTSHARD_COMMON_MEMBERSHIP_RETRY_PAUSE_H_

#include <algorithm>
#include <utility>

#include "absl/time/time.h"

namespace optshard {

// Doubles from `first` up to `longest`. Thread-compatible.
class RetryPause {
 public:
  RetryPause(absl::Duration first, absl::Duration longest)
      : first_(first), longest_(longest), next_(first) {}

  // The pause before the next attempt.
  absl::Duration Next() { return std::exchange(next_, std::min(2 * next_, longest_)); }

  // An attempt has worked: what fails from now on is another trouble.
  void Reset() { next_ = first_; }

 private:
  const absl::Duration first_;
  const absl::Duration longest_;
  absl::Duration next_;
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_MEMBERSHIP_RETRY_PAUSE_H_
