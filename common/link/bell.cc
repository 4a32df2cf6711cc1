#include "common/link/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "common/clock.h"

namespace optshard {
namespace {

// Looks at the bell between two looks at the clock.
constexpr int kLooks = 64;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

// Shared, not FUTEX_PRIVATE_FLAG: others map the word elsewhere. May return early.
void SleepWhile(std::atomic<uint32_t>& word, uint32_t value, absl::Duration longest) {
  const timespec relative = absl::ToTimespec(longest);
  // Interrupted, late, changed meanwhile or woken: the caller looks for itself.
  (void)syscall(SYS_futex, &word, FUTEX_WAIT, value,
                longest == absl::InfiniteDuration() ? nullptr : &relative, nullptr, 0);
}

void WakeAll(std::atomic<uint32_t>& word) {
  (void)syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

// Sequential consistency (Dekker): a ringer that sees no sleeper has rung before the sleeper
// looked.
void Bell::Ring() {
  rung_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) WakeAll(rung_);
}

bool Bell::Wait(uint32_t heard, absl::Time deadline, absl::Duration spin) {
  if (Count() != heard) return true;
  const Clock& clock = Clock::Monotonic();
  absl::Time now = clock.Now();
  const absl::Time spin_end = std::min(deadline, now + spin);
  while (now < spin_end) {
    for (int look = 0; look < kLooks; ++look) {
      if (Count() != heard) return true;
      Pause();
    }
    now = clock.Now();
  }

  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  bool rang = false;
  while (true) {
    rang = rung_.load(std::memory_order_seq_cst) != heard;
    if (rang || now >= deadline) break;
    SleepWhile(rung_, heard, deadline - now);
    now = clock.Now();
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  return rang;
}

}  // namespace optshard
