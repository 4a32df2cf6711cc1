#include "server/shard/inspection/timeline_ring.h"

#include <algorithm>
#include <utility>

namespace optshard {

TimelineRing::TimelineRing(int steps, const Clock& clock)
    : steps_(std::max(steps, 1)), origin_(clock.Now()) {}

void TimelineRing::BeginStep(StepNumber step) {
  current_.clear();
  current_step_ = step;
}

void TimelineRing::Record(absl::string_view phase, int bucket, absl::Time start, absl::Time end) {
  TimelineSpan span;
  span.step = current_step_;
  span.bucket = bucket;
  span.phase = std::string(phase);
  span.start_us = absl::ToInt64Microseconds(start - origin_);
  span.duration_us = absl::ToInt64Microseconds(end - start);
  current_.push_back(std::move(span));
}

void TimelineRing::EndStep() {
  ended_.push_back(std::make_shared<const std::vector<TimelineSpan>>(current_));
  while (ended_.size() > static_cast<size_t>(steps_)) ended_.pop_front();
  if (!mutex_.TryLock()) return;
  for (Spans& spans : ended_) kept_.push_back(std::move(spans));
  while (kept_.size() > static_cast<size_t>(steps_)) kept_.pop_front();
  mutex_.Unlock();
  ended_.clear();
}

std::vector<TimelineSpan> TimelineRing::Read() const {
  std::deque<Spans> kept;
  {
    absl::MutexLock lock(&mutex_);
    kept = kept_;
  }
  std::vector<TimelineSpan> spans;
  for (const Spans& step : kept) spans.insert(spans.end(), step->begin(), step->end());
  return spans;
}

}  // namespace optshard
