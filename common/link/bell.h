// A futex in shared memory: a thread sleeps until another thread, of this process or another,
// rings.
#ifndef OPTSHARD_COMMON_LINK_BELL_H_
#define OPTSHARD_COMMON_LINK_BELL_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace optshard {

// Lives in memory that all its users map. Memory of zeros is a bell that has never rung. What was
// written before Ring is visible after a Wait or Count that saw it. Thread-safe.
//
//   uint32_t heard = bell.Count();
//   while (!condition()) {
//     if (!bell.Wait(heard, deadline)) return TimedOut();
//     heard = bell.Count();
//   }
class Bell {
 public:
  // How often it rang, modulo 2^32.
  uint32_t Count() const { return rung_.load(std::memory_order_acquire); }

  // Wakes all threads that wait. Makes a system call only if one of them sleeps.
  void Ring();

  // Returns true once Count() differs from `heard`, and false at the deadline (in the time of
  // Clock::Monotonic()). Polls for `spin` before it sleeps: waking a thread takes tens of
  // microseconds.
  bool Wait(uint32_t heard, absl::Time deadline, absl::Duration spin = absl::ZeroDuration());

 private:
  std::atomic<uint32_t> rung_{0};
  // How many threads may be asleep. Too high after a process died while it slept; that only costs
  // system calls.
  std::atomic<uint32_t> sleepers_{0};
};
static_assert(sizeof(Bell) == 8 && std::atomic<uint32_t>::is_always_lock_free,
              "a bell is shared between processes");

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_BELL_H_
