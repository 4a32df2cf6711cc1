#include "server/shard/inspection/idle_thread.h"

#include <sched.h>

#include <utility>

#include "common/new_thread.h"

namespace optshard {

absl::StatusOr<std::thread> StartIdleThread(std::function<void()> work) {
  return StartThread(StartSystemThread, [work = std::move(work)] {
    // Everybody may give up priority. Where a sandbox refuses even that, the work is done anyway.
    const sched_param none{};
    sched_setscheduler(0, SCHED_IDLE, &none);
    work();
  });
}

}  // namespace optshard
