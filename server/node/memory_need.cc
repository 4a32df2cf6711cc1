#include "server/node/memory_need.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/attach/doorbell.h"
#include "common/bucket.h"
#include "common/dataplane/gloo/gloo_plane_options.h"
#include "common/dataplane/shm/replica_segments.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/generation_shape.h"
#include "common/host_transfer.h"
#include "common/partition.h"
#include "common/plan.h"
#include "server/node/admission_record.h"
#include "server/node/doorbell_shape.h"
#include "server/node/rank_record.h"
#include "server/shard/engine/message_buffers.h"
#include "server/shard/engine/step_exchange.h"
#include "server/shard/engine/workspaces.h"
#include "server/shard/state/device_access.h"
#include "server/shard/state/shard_store.h"
#include "server/update/group_update.h"
#include "server/update/offload_executor.h"

namespace optshard {
namespace {

// Of so many other ranks, for the buckets of `rank`: the Gloo plane keeps them until they are
// summed (GlooPlaneOptions::reduce_window_bytes). Over Gloo they travel as they are, between nodes
// as sums.
int64_t ContributionBytes(const std::vector<Bucket>& buckets, Rank rank, int64_t others) {
  int64_t all = 0;
  int64_t largest = 0;
  for (const Bucket& bucket : buckets) {
    if (bucket.owner != rank) continue;
    const auto each = static_cast<int64_t>(SizeOf(ArithmeticOf(bucket.gradient_dtype)));
    const int64_t bytes = SaturatingMultiply(SaturatingMultiply(bucket.elements, each), others);
    all = SaturatingAdd(all, bytes);
    largest = std::max(largest, bytes);
  }
  const auto window = static_cast<int64_t>(GlooPlaneOptions().reduce_window_bytes);
  return std::min(all, std::max(largest, window));
}

// Gradients are reduced, and parameters published, between the ranks' devices.
void PlaceOnDevice(const AttachRequest& request, const std::vector<Bucket>& buckets,
                   absl::Span<const GroupUpdate> groups, int threads, MemoryNeed* need) {
  need->replica_on_device = true;
  need->slots_on_device = !request.state_on_host;
  need->transfer_bytes =
      static_cast<int64_t>(DeviceAccess::kWindowBytes + 2 * HostTransfer::kWindowBytes);
  if (need->slots_on_device) {
    need->workspace_bytes = 0;
    return;
  }
  const int64_t whole = WholeBytesFor(buckets, request.rank, request.spec.space, groups, threads);
  const int64_t window = std::max(OffloadExecutor::Options().window_bytes, whole);
  need->transfer_bytes = SaturatingAdd(
      need->transfer_bytes, SaturatingMultiply(window, int64_t{OffloadExecutor::kWindows}));
}

}  // namespace

std::string ToString(const MemoryNeed& need) {
  const int64_t bookkeeping =
      need.ledger_bytes + need.record_bytes + need.doorbell_bytes + need.state_window_bytes;
  if (need.replica_on_device) {
    return absl::StrFormat(
        "%d bytes (optimizer state %d, workspaces %d, transfers %d, bookkeeping %d), beside "
        "segments of %d bytes on its device",
        need.total(), need.slots_on_device ? 0 : need.slots_bytes, need.workspace_bytes,
        need.transfer_bytes, bookkeeping, need.device_bytes());
  }
  return absl::StrFormat(
      "%d bytes (parameters %d, gradients %d, optimizer state %d, reduced gradients %d, "
      "messages %d, workspaces %d, bookkeeping %d)",
      need.total(), need.parameters_bytes, need.gradients_bytes, need.slots_bytes,
      need.reduced_bytes, need.message_bytes, need.workspace_bytes, bookkeeping);
}

int MessageMembers(int world_size, int hosted, HostPlaneKind plane) {
  if (plane == HostPlaneKind::kGloo) return world_size;
  return (world_size + hosted - 1) / hosted;
}

int64_t BytesToGrow(const MemoryNeed& before, const MemoryNeed& grown) {
  return (grown.total() - grown.doorbell_bytes) - (before.total() - before.doorbell_bytes) +
         before.transfer_bytes;
}

absl::StatusOr<MemoryNeed> MemoryNeedOf(const AttachRequest& request, const MemoryLayout& layout,
                                        bool has_parameters, int message_members) {
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
  const bool keeps_reduced =
      request.spec.gradient_mode == GradientMode::kReduce && message_members > 1;
  ShardStore::Options store;
  store.shape = GenerationShape::Make(request.spec, std::move(plan));
  store.rank = request.rank;
  store.TakeSlotsOf(*groups);
  const int threads =
      request.threads > 0 ? request.threads : static_cast<int>(std::thread::hardware_concurrency());
  need.workspace_bytes =
      WorkspacesFor(store.shape->buckets(), request.rank, request.spec.space, *groups, threads)
          .bytes();
  const std::vector<Bucket>& buckets = store.shape->buckets();
  if (!request.device.empty()) {
    PlaceOnDevice(request, buckets, *groups, threads, &need);
  } else if (keeps_reduced) {
    need.reduced_bytes = ShardStore::ReducedGradientBytes(store);
    need.message_bytes = ContributionBytes(buckets, request.rank, message_members - 1);
  }
  if (message_members > 1 && request.device.empty()) {
    need.message_bytes =
        SaturatingAdd(need.message_bytes, SaturatingMultiply(int64_t{StepContext().staging_buffers},
                                                             StagingBytes(buckets, ArithmeticOf)));
  }
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
