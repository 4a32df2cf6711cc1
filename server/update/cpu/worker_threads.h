// A fixed set of threads that compute together.
#ifndef OPTSHARD_SERVER_UPDATE_CPU_WORKER_THREADS_H_
#define OPTSHARD_SERVER_UPDATE_CPU_WORKER_THREADS_H_

#include <memory>

#include "absl/functional/function_ref.h"

namespace optshard {

// The thread that calls Run works too; threads - 1 more are kept, on the memory node on which the
// thread that made them ran: memory that they touch first is near. Where that node allows a CPU to
// each, they stay off the one on which Run is called, since a kernel that wakes a worker there has
// it wait until the caller's part is done. They compute in the default floating-point mode.
class WorkerThreads {
 public:
  explicit WorkerThreads(int threads);  // less than 1 counts as 1
  ~WorkerThreads();

  // Calls work(0) to work(parts - 1), each on a thread of its own, and returns when all are done.
  // `parts` is from 1 to threads(); work(0) runs here.
  void Run(int parts, absl::FunctionRef<void(int part)> work);

  int threads() const;

 private:
  class Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_CPU_WORKER_THREADS_H_
