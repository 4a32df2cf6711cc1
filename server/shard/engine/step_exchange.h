// How, within a step, gradients reach their owners and new parameter values reach the replicas.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_STEP_EXCHANGE_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_STEP_EXCHANGE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/bucket.h"
#include "common/clock.h"
#include "common/dataplane/data_plane.h"
#include "common/device_api.h"
#include "common/generation_shape.h"
#include "common/gradient_mode.h"
#include "common/ids.h"
#include "common/memory_layout.h"
#include "common/parameter_space.h"
#include "common/plan.h"
#include "common/state_options.h"
#include "server/shard/engine/replica_memory.h"
#include "server/shard/engine/step_record.h"
#include "server/shard/inspection/timeline_ring.h"
#include "server/shard/state/device_access.h"
#include "server/shard/state/shard_store.h"
#include "server/update/cpu/cpu_executor.h"
#include "server/update/executor.h"
#include "server/update/group_update.h"
#include "server/update/update_rule.h"

namespace optshard {

// What stays the same within a generation. Whatever is pointed to outlives its users.
struct StepContext {
  Rank rank = 0;
  std::shared_ptr<const GenerationShape> shape;
  GroupUpdates groups;  // they decided the slots
  DriverKind driver = DriverKind::kSimd;
  int threads = 1;
  ExecutorFactory make_executor = CpuExecutor::Create;
  DataPlane* plane = nullptr;  // null where there is one rank
  // Where parameters and gradients lie; null: in memory of the host.
  DeviceApi* device = nullptr;
  // How the host reads and writes what is on the device, in order with the steps: the store's,
  // where its state is there, too. Null without one.
  DeviceAccess* device_access = nullptr;
  ShardStore* store = nullptr;
  TimelineRing* timeline = nullptr;
  const Clock* clock = nullptr;
  // How many plane operations may be under way: enough that a rank which is ahead goes on
  // updating and publishing. How many of them through staging memory, of one bucket each.
  int window = 64;
  int staging_buffers = 8;

  const Plan& plan() const { return shape->plan(); }
  const ParameterSpace& space() const { return shape->space(); }
  const MemoryLayout& layout() const { return shape->layout(); }
  const std::vector<Bucket>& buckets() const { return shape->buckets(); }
  GradientMode gradient_mode() const { return shape->spec().gradient_mode; }
  const StateOptions& state() const { return shape->spec().state; }
  int world_size() const { return plan().world_size; }
  bool state_is_on_device() const { return store->device_access() != nullptr; }
};

inline StepTag TagOf(const StepContext& context, StepNumber step, StepPhase phase, int bucket) {
  StepTag tag;
  tag.generation = context.shape->generation();
  tag.step = step;
  tag.bucket = bucket;
  tag.phase = phase;
  return tag;
}

// Whether some of the bucket's parameters are updated.
inline bool AnyUpdated(const Bucket& bucket, const StepRecord& record) {
  for (const BucketSpan& span : bucket.spans) {
    if (record.updated[span.parameter]) return true;
  }
  return false;
}

// Four implementations: by messages of the plane (message_exchange.h), in one pass over the
// replicas themselves (direct_exchange.h), in one pass within each node with messages between
// nodes (hierarchical_exchange.h), and on a device (device_exchange.h). Where the state is on a
// device, Prepare, Apply and Complete have only enqueued there what they promise: what others do is
// then ordered, not done, and Settle waits for it. Bound to the step's thread. Errors are the
// plane's, except those of Check and RunTrainerUpdates; after one only Abandon may follow.
class StepExchange {
 public:
  virtual ~StepExchange() = default;

  // INVALID_ARGUMENT naming the parameter whose memory cannot be used.
  virtual absl::Status Check(const ReplicaMemory& replica) const = 0;

  // When all ranks have returned OK, the owners can read whatever Apply reads.
  virtual absl::Status Prepare(const StepRecord& record, const ReplicaMemory& replica,
                               absl::Time deadline) = 0;

  // Runs the updates of the trainer's own on what this rank owns, once it can be read, and before
  // Apply. No replica changes. Errors are theirs, and Apply may not follow.
  virtual absl::Status RunTrainerUpdates(const StepRecord& record,
                                         const ReplicaMemory& replica) = 0;

  // Updates the buckets that this rank owns and does its part for the other ranks' replicas.
  virtual absl::Status Apply(const StepRecord& record, const ReplicaMemory& replica,
                             absl::Time deadline) = 0;

  // When it returns OK, this rank's replica holds the values of the step, and no rank reads its
  // gradients any more.
  virtual absl::Status Complete(const StepRecord& record, absl::Time deadline) = 0;

  // Rank 0's parameter values go to all, once all ranks have come to this call.
  virtual absl::Status SyncParameters(StepNumber step, const ReplicaMemory& replica,
                                      absl::Time deadline) = 0;

  // Each owner's parameter values, which its replica has, go to all, once all ranks have come to
  // this call. When all ranks have returned OK, all replicas have them.
  virtual absl::Status PublishParameters(StepNumber step, const ReplicaMemory& replica,
                                         absl::Time deadline) = 0;

  // Returns once what Prepare and Apply have enqueued on a device is done. The other calls but
  // Abandon come after it.
  virtual absl::Status Settle(absl::Time) { return absl::OkStatus(); }

  // Ends the operations that are under way on an aborted plane. Afterwards no buffer is in use.
  virtual void Abandon(absl::Time deadline) = 0;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_STEP_EXCHANGE_H_
