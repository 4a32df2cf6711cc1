// Time is injected: domain code asks a Clock. Monotonic, for leases and deadlines; not wall time.
#ifndef OPTSHARD_COMMON_CLOCK_H_
#define OPTSHARD_COMMON_CLOCK_H_

#include "absl/time/time.h"

namespace optshard {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // Monotonic; the origin has no meaning. Differences are exact to a microsecond or better.
  virtual absl::Time Now() const = 0;

  // The machine's monotonic clock. Lives for ever.
  static Clock& Monotonic();
};

}  // namespace optshard

#endif  // OPTSHARD_COMMON_CLOCK_H_
