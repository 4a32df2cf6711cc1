#include "server/update/cpu/worker_threads.h"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/default_floating_point.h"
#include "server/update/cpu/numa_nodes.h"

namespace optshard {

// Run hands each worker its part of one job and waits until all are done. Neither wait has a
// deadline: workers only compute, and an idle one has nothing to wait for but the next job.
class WorkerThreads::Pool {
 public:
  explicit Pool(int threads) {
    const NumaNodes& nodes = NumaNodes::OfThisMachine();
    for (int part = 1; part < threads; ++part) {
      workers_.emplace_back([this, part, &nodes, node = nodes.Here()] {
        nodes.KeepThisThreadOn(node);
        Work(part);
      });
    }
  }

  ~Pool() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    for (std::thread& worker : workers_) worker.join();
  }

  void Run(int parts, absl::FunctionRef<void(int)> work) {
    if (parts == 1) {
      work(0);
      return;
    }
    {
      absl::MutexLock lock(&mutex_);
      work_ = &work;
      parts_ = parts;
      ++job_number_;
      unfinished_ = parts - 1;
    }
    work(0);
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* unfinished) { return *unfinished == 0; }, &unfinished_));
  }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

 private:
  struct Wait {
    Pool* pool;
    int part;
    uint64_t done;
    // A job that has a part for this worker.
    bool Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(pool->mutex_) {
      return pool->stopping_ || (pool->job_number_ != done && part < pool->parts_);
    }
  };

  void Work(int part) {
    const DefaultFloatingPoint default_mode;  // it has inherited that of a trainer's thread
    Wait wait{this, part, 0};
    while (true) {
      absl::FunctionRef<void(int)>* work = nullptr;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(&wait, &Wait::Ready));
        if (stopping_) return;
        work = work_;
        wait.done = job_number_;
      }
      (*work)(part);
      absl::MutexLock lock(&mutex_);
      --unfinished_;
    }
  }

  absl::Mutex mutex_;
  // The job at hand: valid until Run returns.
  absl::FunctionRef<void(int)>* work_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int parts_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t job_number_ ABSL_GUARDED_BY(mutex_) = 0;
  int unfinished_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
};

WorkerThreads::WorkerThreads(int threads) : pool_(std::make_unique<Pool>(std::max(threads, 1))) {}

WorkerThreads::~WorkerThreads() = default;

void WorkerThreads::Run(int parts, absl::FunctionRef<void(int part)> work) {
  pool_->Run(parts, work);
}

int WorkerThreads::threads() const { return pool_->threads(); }

}  // namespace optshard
