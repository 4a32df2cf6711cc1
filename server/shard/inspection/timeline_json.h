// A timeline as Chrome trace JSON, for chrome://tracing and ui.perfetto.dev.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_TIMELINE_JSON_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_TIMELINE_JSON_H_

#include <string>

#include "absl/types/span.h"
#include "common/ids.h"
#include "server/shard/inspection/shard_view.h"

namespace optshard {

// An object whose "traceEvents" has one complete event ("ph": "X") for each span. The rank is shown
// as a process. Its rows are the whole steps, reduce, update and publish. Spans of one phase that
// overlap get rows of their own, since events in a row of a trace may be nested but not overlap.
std::string TimelineJson(const MemberId& member, absl::Span<const TimelineSpan> spans);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_TIMELINE_JSON_H_
