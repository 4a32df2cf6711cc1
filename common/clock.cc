#include "common/clock.h"

#include <chrono>

namespace optshard {
namespace {

class MonotonicClock final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() +
           absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace

Clock& Clock::Monotonic() {
  static MonotonicClock* const clock = new MonotonicClock;  // outlives every static that asks it
  return *clock;
}

}  // namespace optshard
