// How the conformance suite calls a plane.
#ifndef OPTSHARD_TESTS_COMMON_DATAPLANE_CONFORMANCE_OPERATIONS_H_
#define OPTSHARD_TESTS_COMMON_DATAPLANE_CONFORMANCE_OPERATIONS_H_

#include <memory>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/dataplane/data_plane.h"
#include "tests/common/dataplane/plane_group.h"

namespace optshard {

inline const ExecutionContext kHost;

inline StepTag Tag(StepPhase phase, int32_t bucket = 0, StepNumber step = 1) {
  return StepTag{/*generation=*/3, step, bucket, phase};
}

inline std::vector<Rank> AllRanks(const DataPlane& plane) {
  std::vector<Rank> ranks(plane.world_size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

inline absl::Status WaitFor(absl::StatusOr<std::unique_ptr<Ticket>> ticket,
                            absl::Time deadline = FarDeadline()) {
  return ticket.ok() ? (*ticket)->Wait(deadline) : ticket.status();
}

// A gather of one byte: nobody returns OK before all have come.
inline absl::Status Barrier(DataPlane& plane, int number) {
  char mine = 1;
  std::vector<char> all(plane.world_size());
  return WaitFor(plane.AllGather(Tag(StepPhase::kControl, number), kHost, &mine, all.data(), 1));
}

}  // namespace optshard

#endif  // OPTSHARD_TESTS_COMMON_DATAPLANE_CONFORMANCE_OPERATIONS_H_
