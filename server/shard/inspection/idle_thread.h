// Work that leaves the CPU to everybody else.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_IDLE_THREAD_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_IDLE_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/statusor.h"

namespace optshard {

// Runs `work` on a thread of its own, of Linux's SCHED_IDLE: it runs where no other thread wants
// the CPU, and otherwise for about 0.3 % of the time. The work should hold no lock that anybody of
// importance waits for. RESOURCE_EXHAUSTED as StartThread. Thread-safe.
absl::StatusOr<std::thread> StartIdleThread(std::function<void()> work);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_IDLE_THREAD_H_
