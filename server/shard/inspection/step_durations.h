// How long the phases of the last steps took.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_STEP_DURATIONS_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_STEP_DURATIONS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "server/shard/inspection/shard_view.h"

namespace optshard {

struct StepDurations {
  StepNumber step = 0;
  // Of the whole step, one after the other. A step that failed lacks the later ones.
  int64_t prepare_us = 0;
  int64_t commit_us = 0;
  int64_t apply_us = 0;
  // From the beginning of the first bucket to the end of the last one; 0 where there is none.
  int64_t reduce_us = 0;
  int64_t update_us = 0;
  int64_t publish_us = 0;
  int updated_buckets = 0;
};

// `spans` as ShardView::Timeline gives them. A step that was tried again comes several times.
std::vector<StepDurations> DurationsOf(absl::Span<const TimelineSpan> spans);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_STEP_DURATIONS_H_
