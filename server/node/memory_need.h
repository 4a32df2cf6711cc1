// How much memory a rank needs on its node, computed before anything is allocated.
#ifndef OPTSHARD_SERVER_NODE_MEMORY_NEED_H_
#define OPTSHARD_SERVER_NODE_MEMORY_NEED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/attach/attachment.h"
#include "common/checked_math.h"
#include "common/dataplane/host_plane.h"
#include "common/memory_layout.h"
#include "server/shard/state/shard_memory.h"

namespace optshard {

struct MemoryNeed {
  int64_t parameters_bytes = 0;
  int64_t gradients_bytes = 0;
  // Exactly what the shard owner will use, because partition and buckets follow from the request:
  // by admission, and in all.
  std::vector<ShardMemory::Bytes> state;
  int64_t slots_bytes = 0;
  int64_t ledger_bytes = 0;
  int64_t record_bytes = 0;  // rank_record.h, admission_record.h
  // Reduced gradients, which the owner keeps where it cannot reach the other ranks' memory. An
  // upper bound: whether it can is known only after the join.
  int64_t reduced_bytes = 0;
  // What travels as messages: contributions that the owner has received and not yet summed, and
  // staging buffers. An upper bound likewise, for so many members.
  int64_t message_bytes = 0;
  // What rules that need whole parameters compute in. An upper bound where the request
  // leaves the number of threads open: as if the rank had all CPUs.
  int64_t workspace_bytes = 0;
  // Pinned, through which state and values pass between the host and a device.
  int64_t transfer_bytes = 0;
  int64_t doorbell_bytes = 0;  // of the rank's trainer
  // The server's copy of the state that a trainer sets, a window at a time.
  int64_t state_window_bytes = 0;

  // Whether they are segments in memory of a device. What else the owner has there is not known
  // here.
  bool replica_on_device = false;  // parameters and gradients
  bool slots_on_device = false;

  // Of memory of the host. INT64_MAX where it would be larger, as the others.
  int64_t total() const {
    int64_t sum = replica_on_device ? 0 : SaturatingAdd(parameters_bytes, gradients_bytes);
    if (!slots_on_device) sum = SaturatingAdd(sum, slots_bytes);
    for (const int64_t bytes : {ledger_bytes, record_bytes, doorbell_bytes, own_bytes()}) {
      sum = SaturatingAdd(sum, bytes);
    }
    return sum;
  }
  int64_t device_bytes() const {
    const int64_t replica = SaturatingAdd(parameters_bytes, gradients_bytes);
    return SaturatingAdd(replica_on_device ? replica : 0, slots_on_device ? slots_bytes : 0);
  }
  // What the shard owner and its thread allocate for themselves, beside what the node hands them.
  int64_t own_bytes() const {
    int64_t sum = 0;
    for (const int64_t bytes :
         {reduced_bytes, message_bytes, workspace_bytes, transfer_bytes, state_window_bytes}) {
      sum = SaturatingAdd(sum, bytes);
    }
    return sum;
  }
};
std::string ToString(const MemoryNeed& need);  // "1024 bytes (parameters 512, ...)"

// What a rank that needs `before` takes in addition to grow to `grown`, beside the doorbell that
// its trainer has been given for it already; while it grows, transfers of both.
int64_t BytesToGrow(const MemoryNeed& before, const MemoryNeed& grown);

// Among how many ranks a gradient is summed over messages, where a server hosts so many of the
// job's ranks: all of them over Gloo, otherwise one of each node. 1: the ranks share memory, and
// there are no messages. It takes every node to have as many ranks, and those of each to share
// memory. Where that is not so, or another rank asks for Gloo, more are summed, and an owner may
// take a bucket of each (GlooPlaneOptions::reduce_window_bytes) beyond what it needs by this.
int MessageMembers(int world_size, int hosted, HostPlaneKind plane);

// `layout` is that of the request's space. `has_parameters`: the rank has a copy of the parameters
// of its own. `message_members`: of MessageMembers. INVALID_ARGUMENT for rules or hyperparameters
// that the shard owner would refuse. Thread-safe.
absl::StatusOr<MemoryNeed> MemoryNeedOf(const AttachRequest& request, const MemoryLayout& layout,
                                        bool has_parameters, int message_members);

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_MEMORY_NEED_H_
