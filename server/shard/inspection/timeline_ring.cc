#include "server/shard/inspection/timeline_ring.h"

#include <algorithm>
#include <utility>

namespace optshard {

TimelineRing::TimelineRing(int steps, const Clock& clock)
    : steps_(std::max(steps, 1)), clock_(clock), origin_(clock.Now()) {}

void TimelineRing::Enter(RankPhase phase, absl::Time since) {
  entered_.store(8 * absl::ToInt64Microseconds(since - origin_) + static_cast<int64_t>(phase),
                 std::memory_order_relaxed);
}

RankActivity TimelineRing::activity() const {
  const int64_t entered = entered_.load(std::memory_order_relaxed);
  RankActivity activity;
  activity.phase = static_cast<RankPhase>(entered % 8);
  activity.lasts = clock_.Now() - origin_ - absl::Microseconds(entered / 8);
  return activity;
}

void TimelineRing::BeginStep(StepNumber step, absl::Time start, RankPhase phase) {
  Enter(phase, start);
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
  if (phase == "prepare") Enter(RankPhase::kCommit, end);
  if (phase == "commit") Enter(RankPhase::kApply, end);
  if (phase == "apply") Enter(RankPhase::kIdle, end);
}

void TimelineRing::EnterIdle() {
  const bool applied = !current_.empty() && current_.back().phase == "apply";
  if (!applied) Enter(RankPhase::kIdle, clock_.Now());
}

void TimelineRing::DropStep() {
  EnterIdle();
  current_.clear();
}

void TimelineRing::EndStep() {
  EnterIdle();
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
