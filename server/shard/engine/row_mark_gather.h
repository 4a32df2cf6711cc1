// How the ranks tell each other which rows their sparse gradients have.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_ROW_MARK_GATHER_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_ROW_MARK_GATHER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/dataplane/data_plane.h"

namespace optshard {

// Of a rank's marks that travel in one operation: 1 MiB, those of 8.4 million rows.
constexpr size_t kWordsOfAGather = (size_t{1} << 20) / sizeof(uint64_t);

// The marks of all ranks, by rank; all give as many words. Operation number n, counted from 0, has
// n as the bucket of its tag. Errors are those of DataPlane::AllGather and of the wait for it.
absl::StatusOr<std::vector<uint64_t>> GatherRowMarks(DataPlane& plane, const StepTag& tag,
                                                     absl::Span<const uint64_t> own,
                                                     absl::Time deadline);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_ROW_MARK_GATHER_H_
