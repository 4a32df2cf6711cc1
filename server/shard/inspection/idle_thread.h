// Work that leaves the CPU to everybody else.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_IDLE_THREAD_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_IDLE_THREAD_H_

#include "absl/functional/function_ref.h"

namespace optshard {

// Runs `work` on a thread of its own, of Linux's SCHED_IDLE, and waits for its end: it runs where
// no other thread wants the CPU, and otherwise for about 0.3 % of the time. The work should hold no
// lock that anybody of importance waits for. Thread-safe.
void RunOnIdleThread(absl::FunctionRef<void()> work);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_IDLE_THREAD_H_
