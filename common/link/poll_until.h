// poll() with a deadline.
#ifndef OPTSHARD_COMMON_LINK_POLL_UNTIL_H_
#define OPTSHARD_COMMON_LINK_POLL_UNTIL_H_

#include <poll.h>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace optshard {

// Returns how many of `descriptors` have events (in their `revents`); 0 at the deadline, in the
// time of Clock::Monotonic(); -1 with errno. Polls at least once, even past the deadline. Continues
// after signals. Sleeps where there are no descriptors. Thread-safe.
int PollUntil(absl::Span<pollfd> descriptors, absl::Time deadline);

// The same for `events` of one descriptor. Returns whether there are any, or an error or a hang-up.
bool PollUntil(int fd, int events, absl::Time deadline);

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_POLL_UNTIL_H_
