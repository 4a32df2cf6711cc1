// An executor like a device's: what is started has not begun when Start returns.
#ifndef OPTSHARD_TESTS_SERVER_SHARD_ENGINE_LATE_EXECUTOR_H_
#define OPTSHARD_TESTS_SERVER_SHARD_ENGINE_LATE_EXECUTOR_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "server/update/executor.h"

namespace optshard::testing {

// The updates of one rank. They begin when the step's thread waits for their ticket, and are then
// run by it, or by a thread of the ticket's own. Bound to the step's thread; the test may look
// between steps.
struct LateUpdates {
  enum class RunBy { kWaiter, kAnotherThread };
  enum class Fault { kNone, kInStart, kInWait, kAtDeadline };

  RunBy run_by = RunBy::kWaiter;
  // Called in every Wait, before the updates begin.
  std::function<void()> before_updates = [] {};
  Fault fault = Fault::kNone;
  int faulty_ticket = 0;  // counted from 0 over the rank's life
  absl::Status error;     // that of kInStart and kInWait

  // What tasks write of the rank's own replica.
  struct Written {
    const char* begin;
    const char* end;
  };
  std::vector<Written> pending;  // of tickets that have not finished
  std::vector<Written> done;
  int started = 0;

  static bool Contain(const std::vector<Written>& all, const void* begin, int64_t bytes);
};

// Computes as the executor of the host does. `updates` outlives the executors.
ExecutorFactory MakeLateExecutor(LateUpdates* updates);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_SHARD_ENGINE_LATE_EXECUTOR_H_
