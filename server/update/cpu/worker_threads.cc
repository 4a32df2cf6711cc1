#include "server/update/cpu/worker_threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/time/time.h"
#include "common/default_floating_point.h"
#include "common/link/bell.h"
#include "server/update/cpu/numa_nodes.h"

namespace optshard {
namespace {

// Waking a thread that sleeps takes as long as updating some thousands of elements, and a step
// hands out one job a bucket: the next one mostly comes while its workers still look for it.
constexpr absl::Duration kLooksFor = absl::Microseconds(50);

}  // namespace

// Run hands each worker its part of one job and waits until all are done. Neither wait has a
// deadline: workers only compute, and an idle one has nothing to wait for but the next job.
class WorkerThreads::Pool {
 public:
  explicit Pool(int threads) : workers_(std::max(threads, 1) - 1) {
    const NumaNodes& nodes = NumaNodes::OfThisMachine();
    const int node = nodes.Here();
    cpus_ = nodes.AllowedNear(node);
    for (size_t w = 0; w < workers_.size(); ++w) {
      workers_[w].thread = std::thread([this, &worker = workers_[w], &nodes, node, w] {
        nodes.KeepThisThreadOn(node);
        Work(worker, static_cast<int>(w) + 1);
      });
    }
  }

  ~Pool() {
    work_ = nullptr;
    for (Worker& worker : workers_) worker.jobs.Ring();
    for (Worker& worker : workers_) worker.thread.join();
  }

  void Run(int parts, absl::FunctionRef<void(int)> work) {
    if (parts > 1) KeepWorkersOffThisCpu();
    work_ = &work;
    unfinished_.store(parts - 1, std::memory_order_relaxed);
    const uint32_t heard = done_.Count();
    for (int part = 1; part < parts; ++part) workers_[part - 1].jobs.Ring();
    work(0);
    if (parts > 1) done_.Wait(heard, absl::InfiniteFuture(), kLooksFor);
  }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

 private:
  struct alignas(ABSL_CACHELINE_SIZE) Worker {
    Bell jobs;  // rings for each job that has a part for this worker
    std::thread thread;
  };

  // A system call a worker where the caller has moved since, which the kernel lets it do seldom.
  void KeepWorkersOffThisCpu() {
    if (CPU_COUNT(&cpus_) < threads()) return;
    const int cpu = sched_getcpu();
    if (cpu < 0 || cpu == kept_off_) return;
    kept_off_ = cpu;
    cpu_set_t others = cpus_;
    CPU_CLR(cpu, &others);
    for (Worker& worker : workers_) {
      pthread_setaffinity_np(worker.thread.native_handle(), sizeof others, &others);
    }
  }

  void Work(Worker& worker, int part) {
    const DefaultFloatingPoint default_mode;  // it has inherited that of a trainer's thread
    for (uint32_t heard = 0;; ++heard) {
      worker.jobs.Wait(heard, absl::InfiniteFuture(), kLooksFor);
      if (work_ == nullptr) return;
      (*work_)(part);
      if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) done_.Ring();
    }
  }

  cpu_set_t cpus_;     // for the caller and the workers
  int kept_off_ = -1;  // the CPU of the latest caller
  // The job at hand, until Run returns; written while no worker has a part of one.
  absl::FunctionRef<void(int)>* work_ = nullptr;
  std::atomic<int> unfinished_{0};
  Bell done_;  // rings when the last worker's part is done
  std::vector<Worker> workers_;
};

WorkerThreads::WorkerThreads(int threads) : pool_(std::make_unique<Pool>(threads)) {}

WorkerThreads::~WorkerThreads() = default;

void WorkerThreads::Run(int parts, absl::FunctionRef<void(int part)> work) {
  pool_->Run(parts, work);
}

int WorkerThreads::threads() const { return pool_->threads(); }

}  // namespace optshard
