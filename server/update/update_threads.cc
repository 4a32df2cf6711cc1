#include "server/update/update_threads.h"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/default_floating_point.h"
#include "server/update/numa_nodes.h"

namespace optshard {
namespace {

// A cache line of the smallest type: no two threads write to one of an aligned span.
constexpr int64_t kCutElements = 32;
// Waking a thread takes as long as updating about this many elements.
constexpr int64_t kElementsWorthAThread = 8192;

struct Job {
  const UpdateRule* rule = nullptr;
  DriverKind driver = DriverKind::kScalar;
  absl::Span<const SpanTask> tasks;
  int64_t elements = 0;  // of all tasks
  int parts = 1;
};

// Where in a task of `length` elements that starts at `start` of the whole the cut at `at` falls.
int64_t CutWithin(int64_t at, int64_t start, int64_t length) {
  if (at <= start) return 0;
  if (at >= start + length) return length;
  return (at - start) / kCutElements * kCutElements;
}

// The part'th share of all elements, in equal parts up to kCutElements.
void RunPart(const Job& job, int part) {
  const int64_t from = job.elements * part / job.parts;
  const int64_t to = job.elements * (part + 1) / job.parts;
  int64_t start = 0;
  for (const SpanTask& task : job.tasks) {
    const int64_t length = task.span.elements;
    const int64_t first = CutWithin(from, start, length);
    const int64_t last = CutWithin(to, start, length);
    if (first < last) {
      job.rule->Update(job.driver, *task.coefficients, task.span.Part(first, last - first));
    }
    start += length;
  }
}

}  // namespace

// Run hands each worker its part of one job and waits until all are done. Neither wait has a
// deadline: workers only compute, and an idle one has nothing to wait for but the next job.
class UpdateThreads::Pool {
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

  void Run(Job job) {
    if (job.parts == 1) {
      RunPart(job, 0);
      return;
    }
    {
      absl::MutexLock lock(&mutex_);
      job_ = job;
      ++job_number_;
      unfinished_ = job.parts - 1;
    }
    RunPart(job, 0);
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
      return pool->stopping_ || (pool->job_number_ != done && part < pool->job_.parts);
    }
  };

  void Work(int part) {
    const DefaultFloatingPoint default_mode;  // it has inherited that of a trainer's thread
    Wait wait{this, part, 0};
    while (true) {
      Job job;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(&wait, &Wait::Ready));
        if (stopping_) return;
        job = job_;
        wait.done = job_number_;
      }
      RunPart(job, part);
      absl::MutexLock lock(&mutex_);
      --unfinished_;
    }
  }

  absl::Mutex mutex_;
  Job job_ ABSL_GUARDED_BY(mutex_);
  uint64_t job_number_ ABSL_GUARDED_BY(mutex_) = 0;
  int unfinished_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
};

UpdateThreads::UpdateThreads(int threads) : pool_(std::make_unique<Pool>(std::max(threads, 1))) {}

UpdateThreads::~UpdateThreads() = default;

void UpdateThreads::Run(const UpdateRule& rule, DriverKind driver,
                        absl::Span<const SpanTask> tasks) {
  Job job;
  job.rule = &rule;
  job.driver = driver;
  job.tasks = tasks;
  for (const SpanTask& task : tasks) job.elements += task.span.elements;
  job.parts = static_cast<int>(
      std::min<int64_t>(threads(), std::max<int64_t>(1, job.elements / kElementsWorthAThread)));
  pool_->Run(job);
}

int UpdateThreads::threads() const { return pool_->threads(); }

}  // namespace optshard
