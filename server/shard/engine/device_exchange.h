// Steps of parameters and gradients that lie on a device: reduced and published there, in the order
// of streams, and updated where the state is.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_DEVICE_EXCHANGE_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_DEVICE_EXCHANGE_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/device_api.h"
#include "common/ticket.h"
#include "server/shard/engine/bucket_tasks.h"
#include "server/shard/engine/bucket_updater.h"
#include "server/shard/engine/step_exchange.h"
#include "server/update/executor.h"

namespace optshard {

// Prepare and Apply enqueue and wait for nothing on the device; Settle waits. The updates are on a
// stream of the exchange's own: a bucket is updated once its gradients are reduced, while others
// still are, and is published while the next one is updated. (Where buckets are not in place in the
// replica, what arrives is unpacked before the next one is updated.) The replica's stream goes on
// behind all of it.
//
// Where the state is in memory of the host, Prepare waits until the gradients are there, reduced: a
// rank that is lost before, or a device that hangs, tears nothing. Apply waits until the host has
// made its updates (OffloadExecutor), while the device publishes those that are made, and Complete
// for the rest.
class DeviceExchange final : public StepExchange {
 public:
  // `context` has a device; its executor is one of arrays where the state is. INTERNAL: a plan that
  // cuts a parameter whose rule needs it whole; UNIMPLEMENTED: a group's rule does not run on the
  // device, or there are updates of the trainer's own; RESOURCE_EXHAUSTED; what the executor's
  // factory returns.
  static absl::StatusOr<std::unique_ptr<StepExchange>> Create(const StepContext& context);

  absl::Status Check(const ReplicaMemory& replica) const override;
  absl::Status Prepare(const StepRecord& record, const ReplicaMemory& replica,
                       absl::Time deadline) override;
  absl::Status RunTrainerUpdates(const StepRecord& record, const ReplicaMemory& replica) override;
  absl::Status Apply(const StepRecord& record, const ReplicaMemory& replica,
                     absl::Time deadline) override;
  absl::Status Complete(const StepRecord& record, absl::Time deadline) override;
  absl::Status SyncParameters(StepNumber step, const ReplicaMemory& replica,
                              absl::Time deadline) override;
  absl::Status PublishParameters(StepNumber step, const ReplicaMemory& replica,
                                 absl::Time deadline) override;
  absl::Status Settle(absl::Time deadline) override;
  void Abandon(absl::Time deadline) override;

 private:
  // Holds any bucket. It is free once the stream that wants it is behind `user`.
  struct Staging {
    std::shared_ptr<void> memory;
    Ticket* user = nullptr;  // among the tickets that are under way; null: nobody
  };
  // What is read or written of a span, from its first element on.
  using SpanArray = absl::FunctionRef<ConstBuffer(const BucketSpan& span)>;

  DeviceExchange(const StepContext& context, BucketTasks tasks, std::shared_ptr<void> stream,
                 std::unique_ptr<DeviceEvent> replica_is_ready,
                 std::unique_ptr<DeviceEvent> all_is_done, std::vector<Staging> staging);

  ExecutionContext On(void* stream) const { return {context_.device->name(), stream}; }
  ExecutionContext OnUpdates() const { return On(stream_.get()); }

  // What is put on the stream of the updates later comes behind what is on the replica's now, and
  // behind copies of the replica's parameters.
  absl::Status BeginBehind(const ReplicaMemory& replica);
  // What is put on the replica's stream later comes behind all that is under way.
  absl::Status EndBefore(const ReplicaMemory& replica);
  // What is under way, and what was on the replica's stream before it.
  absl::Status AwaitAll(absl::Time deadline);
  absl::Status AwaitTickets(absl::Time deadline);
  void Forget();  // what is under way, which has ended
  absl::StatusOr<Ticket*> Keep(absl::StatusOr<std::unique_ptr<Ticket>> ticket);
  // For work on `stream`, which is put behind who had it before.
  absl::StatusOr<Staging*> TakeStaging(void* stream);
  absl::Status Pack(const Bucket& bucket, DType dtype, SpanArray array, void* to, void* stream);

  absl::Status ReduceAll(const StepRecord& record, const ReplicaMemory& replica);
  absl::StatusOr<Ticket*> Reduce(const Bucket& bucket, Buffer average, const StepRecord& record,
                                 const ReplicaMemory& replica);
  absl::Status MakeUpdater();
  absl::Status Update(int own, const StepRecord& record, const ReplicaMemory& replica,
                      absl::Time deadline);
  absl::Status UpdateOnDevice(int own, const StepRecord& record, SpanPlace place);
  absl::Status Publish(const Bucket& bucket, Rank from, const StepTag& tag,
                       const ReplicaMemory& replica);

  const StepContext context_;
  const bool reduces_;               // gradients go to their owners
  const bool publishes_;             // parameters come from them
  std::vector<Reduction> averages_;  // by owner
  const BucketTasks tasks_of_;
  // Freed in the reverse order: first what is under way, then the stream, whose work uses staging.
  std::vector<Staging> staging_;
  size_t next_staging_ = 0;
  const std::shared_ptr<void> stream_;
  const std::unique_ptr<DeviceEvent> replica_is_ready_;
  const std::unique_ptr<DeviceEvent> all_is_done_;
  std::unique_ptr<Executor> executor_;  // of updates on the device; null where they are the host's
  // Of those, on a stream of their own, which waits for no other rank.
  std::shared_ptr<void> host_stream_;
  std::unique_ptr<DeviceEvent> are_updated_;
  std::unique_ptr<BucketUpdater> on_host_;
  std::vector<std::unique_ptr<Ticket>> under_way_;
  std::vector<Ticket*> reduced_;  // by own bucket, of this step; null: nothing to wait for
  std::vector<UpdateTask> tasks_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_DEVICE_EXCHANGE_H_
