// The timeline of the last steps: when each bucket was reduced, updated and published.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_TIMELINE_RING_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_TIMELINE_RING_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "server/shard/inspection/rank_phase.h"
#include "server/shard/inspection/shard_view.h"

namespace optshard {

// Recording is bound to the step's thread and never waits for a reader. Any thread may call Read.
class TimelineRing {
 public:
  // Keeps the last `steps` steps, finished or failed. Times count from now on. The clock outlives
  // it.
  TimelineRing(int steps, const Clock& clock);

  // The rank begins with the phase.
  void BeginStep(StepNumber step, absl::Time start, RankPhase phase = RankPhase::kPrepare);
  // bucket -1: of the whole step.
  void Record(absl::string_view phase, int bucket, absl::Time start, absl::Time end);
  void EndStep();
  // Instead of EndStep: forgets the step.
  void DropStep();

  // What the step's thread is doing, and for how long. Takes no lock.
  RankActivity activity() const;

  // The oldest first.
  std::vector<TimelineSpan> Read() const;

 private:
  using Spans = std::shared_ptr<const std::vector<TimelineSpan>>;

  void Enter(RankPhase phase, absl::Time since);
  void EnterIdle();

  const int steps_;
  const Clock& clock_;
  const absl::Time origin_;
  // Microseconds after origin_, times 8, and the phase that began then.
  std::atomic<int64_t> entered_{static_cast<int64_t>(RankPhase::kIdle)};
  std::vector<TimelineSpan> current_;
  StepNumber current_step_ = 0;
  // Steps that ended while a reader held the lock. They are handed over with the next one.
  std::deque<Spans> ended_;

  mutable absl::Mutex mutex_;
  std::deque<Spans> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_TIMELINE_RING_H_
