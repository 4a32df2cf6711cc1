// What an update writes.
#ifndef OPTSHARD_SERVER_UPDATE_WRITTEN_MEMORY_H_
#define OPTSHARD_SERVER_UPDATE_WRITTEN_MEMORY_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "server/update/update_rule.h"

namespace optshard {

// Calls `take` for each of the arrays of a span that its update writes, the other replicas' left
// out: state, and the parameter. Slots have a value for each element.
void ForEachWritten(const SpanUpdate& span,
                    absl::FunctionRef<void(const void* data, int64_t bytes)> take);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_UPDATE_WRITTEN_MEMORY_H_
