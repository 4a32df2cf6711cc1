#include "common/link/stop_event.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"

namespace optshard {

absl::StatusOr<StopEvent> StopEvent::Create() {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (fd.valid()) return StopEvent(std::move(fd));
  return absl::ErrnoToStatus(
      errno, "cannot make an eventfd; where too many files are open, raise the limit (ulimit -n)");
}

void StopEvent::Signal() const {
  const uint64_t one = 1;
  // Fails only where it is readable already.
  (void)!write(fd_.get(), &one, sizeof one);
}

}  // namespace optshard
