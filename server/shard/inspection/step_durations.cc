#include "server/shard/inspection/step_durations.h"

#include <algorithm>

#include "absl/types/optional.h"

namespace optshard {
namespace {

// The time from the first span's beginning to the last one's end.
class Extent {
 public:
  void Add(const TimelineSpan& span) {
    const int64_t end = span.start_us + span.duration_us;
    begin_ = begin_.has_value() ? std::min(*begin_, span.start_us) : span.start_us;
    end_ = std::max(end_, end);
  }
  int64_t length() const { return begin_.has_value() ? end_ - *begin_ : 0; }

 private:
  absl::optional<int64_t> begin_;
  int64_t end_ = 0;
};

}  // namespace

std::vector<StepDurations> DurationsOf(absl::Span<const TimelineSpan> spans) {
  std::vector<StepDurations> steps;
  Extent reduce;
  Extent update;
  Extent publish;
  bool voted = false;
  for (const TimelineSpan& span : spans) {
    // What is reduced is recorded before the "prepare" that it is a part of.
    const bool again = voted && (span.phase == "prepare" || span.phase == "reduce");
    if (steps.empty() || steps.back().step != span.step || again) {
      steps.emplace_back();
      steps.back().step = span.step;
      reduce = update = publish = Extent();
      voted = false;
    }
    StepDurations& step = steps.back();
    if (span.phase == "prepare") step.prepare_us += span.duration_us;
    if (span.phase == "commit") {
      step.commit_us += span.duration_us;
      voted = true;
    }
    if (span.phase == "apply") step.apply_us += span.duration_us;
    if (span.phase == "reduce") {
      reduce.Add(span);
      step.reduce_us = reduce.length();
    }
    if (span.phase == "update") {
      update.Add(span);
      step.update_us = update.length();
      ++step.updated_buckets;
    }
    if (span.phase == "publish") {
      publish.Add(span);
      step.publish_us = publish.length();
    }
  }
  return steps;
}

}  // namespace optshard
