#include "common/link/poll_until.h"

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "common/clock.h"

namespace optshard {

int PollUntil(absl::Span<pollfd> descriptors, absl::Time deadline) {
  while (true) {
    const absl::Duration left = std::max(deadline - Clock::Monotonic().Now(), absl::ZeroDuration());
    const timespec relative = absl::ToTimespec(left);
    const int found = ppoll(descriptors.data(), descriptors.size(),
                            left == absl::InfiniteDuration() ? nullptr : &relative, nullptr);
    if (found >= 0 || errno != EINTR) return found;
  }
}

bool PollUntil(int fd, int events, absl::Time deadline) {
  pollfd descriptor = {};
  descriptor.fd = fd;
  descriptor.events = static_cast<decltype(descriptor.events)>(events);
  return PollUntil(absl::MakeSpan(&descriptor, 1), deadline) > 0;
}

}  // namespace optshard
