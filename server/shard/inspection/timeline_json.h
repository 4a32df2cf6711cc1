// A timeline as Chrome trace JSON, for chrome://tracing and ui.perfetto.dev.
#ifndef OPTSHARD_SERVER_SHARD_INSPECTION_TIMELINE_JSON_H_
#define OPTSHARD_SERVER_SHARD_INSPECTION_TIMELINE_JSON_H_

#include <string>

#include "absl/types/span.h"
#include "common/ids.h"
#include "server/shard/inspection/shard_view.h"

namespace optshard {

// An object with "traceEvents": one complete event ("ph": "X") a span. A process is a rank; whole
// phases, reduce, update and publish are its rows. Overlapping spans of one phase get rows of their
// own, since a row of a trace can nest events but not overlap them.
std::string TimelineJson(const MemberId& member, absl::Span<const TimelineSpan> spans);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_INSPECTION_TIMELINE_JSON_H_
