#include "server/shard/inspection/idle_thread.h"

#include <sched.h>

#include <thread>

namespace optshard {

void RunOnIdleThread(absl::FunctionRef<void()> work) {
  std::thread thread([work] {
    // Everybody may give up priority. Where a sandbox refuses even that, the work is done anyway.
    const sched_param none{};
    sched_setscheduler(0, SCHED_IDLE, &none);
    work();
  });
  thread.join();
}

}  // namespace optshard
