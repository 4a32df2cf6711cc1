// The memory of a rank all of which is the host's.
#ifndef OPTSHARD_TESTS_SERVER_NODE_HOST_MEMORY_H_
#define OPTSHARD_TESTS_SERVER_NODE_HOST_MEMORY_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/link/memory_budget.h"
#include "common/link/segment_place.h"
#include "common/link/unique_fd.h"
#include "server/node/rank_memory.h"
#include "server/node/rank_places.h"

namespace optshard::testing {

inline RankPlaces OnHost(MemoryBudget& budget) {
  return RankPlaces::On(std::make_shared<HostSegments>(budget));
}

inline absl::StatusOr<std::shared_ptr<RankMemory>> AdoptOnHost(std::vector<UniqueFd> descriptors,
                                                               MemoryBudget& budget) {
  const RankPlaces places = OnHost(budget);
  return RankMemory::Adopt(std::move(descriptors), *places.records,
                           [&](const AttachRequest&) { return places; });
}

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_NODE_HOST_MEMORY_H_
