// Where a thread sleeps until another one, of this process or another, rings: a futex in shared
// memory.
#ifndef OPTSHARD_COMMON_LINK_BELL_H_
#define OPTSHARD_COMMON_LINK_BELL_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace optshard {

// Lives in memory that all its users map; memory of zeros is a bell that has never rung. What was
// written before Ring may be read after a Wait or Count that saw it. Thread-safe.
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

  // Wakes all that wait. A system call only where somebody sleeps.
  void Ring();

  // Returns true once Count() is another than `heard`, false at the deadline (in the time of
  // Clock::Monotonic()). Looks for as long as `spin` before it sleeps: waking a thread takes tens
  // of microseconds.
  bool Wait(uint32_t heard, absl::Time deadline, absl::Duration spin = absl::ZeroDuration());

 private:
  std::atomic<uint32_t> rung_{0};
  // How many may be asleep; too many where a process died in its sleep, which costs system calls.
  std::atomic<uint32_t> sleepers_{0};
};
static_assert(sizeof(Bell) == 8 && std::atomic<uint32_t>::is_always_lock_free,
              "a bell is shared between processes");

}  // namespace optshard

#endif  // OPTSHARD_COMMON_LINK_BELL_H_
