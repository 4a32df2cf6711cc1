#include "server/node/memory_need.h"

#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/attach/doorbell.h"
#include "common/dataplane/shm/replica_segments.h"
#include "common/errors.h"
#include "common/generation_shape.h"
#include "common/partition.h"
#include "common/plan.h"
#include "server/node/admission_record.h"
#include "server/node/doorbell_shape.h"
#include "server/node/rank_record.h"
#include "server/shard/engine/workspaces.h"
#include "server/shard/state/shard_store.h"
#include "server/update/group_update.h"

namespace optshard {

std::string ToString(const MemoryNeed& need) {
  return absl::StrFormat(
      "%d bytes (parameters %d, gradients %d, optimizer state %d, reduced gradients %d, "
      "workspaces %d, bookkeeping %d)",
      need.total(), need.parameters_bytes, need.gradients_bytes, need.slots_bytes,
      need.reduced_bytes, need.workspace_bytes,
      need.ledger_bytes + need.record_bytes + need.doorbell_bytes + need.state_window_bytes);
}

int64_t BytesToGrow(const MemoryNeed& before, const MemoryNeed& grown) {
  return (grown.total() - grown.doorbell_bytes) - (before.total() - before.doorbell_bytes);
}

absl::StatusOr<MemoryNeed> MemoryNeedOf(const AttachRequest& request, const MemoryLayout& layout,
                                        bool has_parameters, bool all_on_this_node) {
  const absl::StatusOr<std::vector<GroupUpdate>> groups = ValidateGroups(request.spec);
  if (!groups.ok()) return groups.status();
  absl::StatusOr<Partition> partition =
      MakePartition(request.spec.space, request.spec.world_size, request.spec.policy);
  if (!partition.ok()) return partition.status();
  Plan plan;
  plan.world_size = request.spec.world_size;
  plan.policy = request.spec.policy;
  plan.partition = *std::move(partition);

  MemoryNeed need;
  if (has_parameters) {
    need.parameters_bytes = static_cast<int64_t>(ReplicaSegments::ParametersBytes(layout));
  }
  need.gradients_bytes = static_cast<int64_t>(ReplicaSegments::GradientsBytes(layout));
  const bool keeps_reduced = request.spec.gradient_mode == GradientMode::kReduce &&
                             request.spec.world_size > 1 && !all_on_this_node;
  ShardStore::Options store;
  store.shape = GenerationShape::Make(request.spec, std::move(plan));
  store.rank = request.rank;
  store.TakeSlotsOf(*groups);
  const int threads =
      request.threads > 0 ? request.threads : static_cast<int>(std::thread::hardware_concurrency());
  need.workspace_bytes =
      WorkspacesFor(store.shape->buckets(), request.rank, request.spec.space, *groups, threads)
          .bytes();
  if (keeps_reduced) need.reduced_bytes = ShardStore::ReducedGradientBytes(store);
  const int admissions = request.spec.space.admission_count();
  for (int admission = 0; admission < admissions; ++admission) {
    need.state.push_back(ShardStore::BytesFor(store, admission));
    need.slots_bytes =
        SaturatingAdd(need.slots_bytes, static_cast<int64_t>(need.state.back().slots));
    need.ledger_bytes += static_cast<int64_t>(need.state.back().ledger);
  }
  need.doorbell_bytes = static_cast<int64_t>(DoorbellShapeOf(request.spec).bytes());
  need.state_window_bytes = kStateWindowElements * static_cast<int64_t>(sizeof(double));
  // The records of earlier admissions are smaller.
  need.record_bytes = static_cast<int64_t>(
      RankRecord::Bytes() + static_cast<size_t>(admissions) * AdmissionRecord::Bytes(request));
  return need;
}

}  // namespace optshard
