// All the memory of a rank that may outlive the shard server: parameters, gradients, optimizer
// state, and the record of its trainers, in segments whose descriptors another process can hold.
#ifndef OPTSHARD_SERVER_NODE_RANK_MEMORY_H_
#define OPTSHARD_SERVER_NODE_RANK_MEMORY_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/attach/attachment.h"
#include "common/dataplane/shm/replica_segments.h"
#include "common/link/memory_budget.h"
#include "common/link/segment.h"
#include "common/link/unique_fd.h"
#include "common/memory_layout.h"
#include "server/node/memory_need.h"
#include "server/node/rank_record.h"
#include "server/shard/state/shard_memory.h"

namespace optshard {

// Thread-compatible.
class RankMemory {
 public:
  // All zeros, except for the record of the first trainer's request. `need` is computed from it.
  // RESOURCE_EXHAUSTED as Segment::Create.
  static absl::StatusOr<std::shared_ptr<RankMemory>> Create(const AttachRequest& first,
                                                            const MemoryLayout& layout,
                                                            const MemoryNeed& need,
                                                            MemoryBudget& budget);

  // The memory that an earlier server has left, given by its descriptors(). INVALID_ARGUMENT as
  // Segment::Attach.
  static absl::StatusOr<std::shared_ptr<RankMemory>> Adopt(std::vector<UniqueFd> descriptors,
                                                           MemoryBudget& budget);

  // For a process that holds them beyond the end of this one.
  std::vector<int> descriptors() const;

  const AttachRequest& first_request() const { return first_; }
  const MemoryLayout& layout() const { return layout_; }
  const std::shared_ptr<const ReplicaSegments>& replica() const { return replica_; }
  RankRecord& record() { return record_; }

  // The part that the shard owner uses. Keeps `memory` alive.
  static ShardMemory ShardOf(const std::shared_ptr<RankMemory>& memory);

 private:
  RankMemory(AttachRequest first, MemoryLayout layout, Segment record)
      : first_(std::move(first)),
        layout_(std::move(layout)),
        record_segment_(std::move(record)),
        record_(record_segment_.data()) {}

  const AttachRequest first_;
  const MemoryLayout layout_;
  const Segment record_segment_;
  RankRecord record_;
  std::shared_ptr<const ReplicaSegments> replica_;
  Segment slots_;
  Segment ledger_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_RANK_MEMORY_H_
