#include "server/shard/engine/bucket_pipeline.h"

#include <cstdint>
#include <utility>

#include "server/shard/engine/step_input.h"

namespace optshard {

absl::StatusOr<std::unique_ptr<BucketPipeline>> BucketPipeline::Create(
    const StepContext& context, Reductions reductions, TravelsAs travels_as,
    BucketPublisher::Received received) {
  const int64_t staging_bytes =
      context.world_size() == 1 ? 0 : StagingBytes(context.buckets(), travels_as);
  absl::StatusOr<std::unique_ptr<OperationWindow>> window =
      OperationWindow::Create(context.window, context.staging_buffers, staging_bytes);
  if (!window.ok()) return window.status();
  return std::unique_ptr<BucketPipeline>(new BucketPipeline(
      context, std::move(reductions), travels_as, *std::move(window), std::move(received)));
}

BucketPipeline::BucketPipeline(const StepContext& context, Reductions reductions,
                               TravelsAs travels_as, std::unique_ptr<OperationWindow> window,
                               BucketPublisher::Received received)
    : context_(context),
      publishes_(context.plan().policy != PartitionPolicy::kReplicated && context.world_size() > 1),
      reductions_(std::move(reductions)),
      travels_as_(travels_as),
      window_(std::move(window)),
      publisher_(context, window_.get(), std::move(received)) {}

absl::Status BucketPipeline::Reduce(const StepRecord& record, Contribute contribute,
                                    absl::Time deadline) {
  int own = 0;
  for (const Bucket& whole : context_.buckets()) {
    const Buffer average = whole.owner == context_.rank
                               ? context_.store->own_buckets()[own++].reduced_gradient
                               : Buffer();
    const Bucket& bucket = record.rows->Of(whole);
    if (bucket.elements == 0) continue;
    OperationWindow::Operation operation;
    operation.bucket = &bucket;
    operation.start = context_.clock->Now();
    const absl::StatusOr<Contribution> contribution = contribute(bucket, average);
    if (!contribution.ok()) return contribution.status();
    operation.staging = contribution->staging;
    absl::StatusOr<std::unique_ptr<Ticket>> ticket = context_.plane->Reduce(
        TagOf(context_, record.step, StepPhase::kReduce, bucket.index), ExecutionContext(),
        reductions_[bucket.owner], travels_as_(bucket.gradient_dtype), contribution->data,
        average.data(), bucket.elements);
    if (!ticket.ok()) return ticket.status();
    operation.ticket = std::move(*ticket);
    if (contribution->data != nullptr) {
      operation.done = [this](const OperationWindow::Operation& reduced) {
        context_.timeline->Record("reduce", reduced.bucket->index, reduced.start,
                                  context_.clock->Now());
      };
    }
    absl::Status pushed = window_->Push(std::move(operation), deadline);
    if (!pushed.ok()) return pushed;
  }
  return window_->Drain(deadline);
}

absl::Status BucketPipeline::Apply(const StepRecord& record, const ReplicaMemory& replica,
                                   absl::FunctionRef<absl::Status(int own)> update,
                                   absl::Time deadline) {
  int own = 0;
  for (const Bucket& whole : context_.buckets()) {
    const Bucket& bucket = record.rows->Of(whole);
    if (bucket.owner == context_.rank) {
      absl::Status updated = update(own++);
      if (!updated.ok()) return updated;
    }
    if (!publishes_ || !AnyUpdated(bucket, record)) continue;
    absl::Status published = publisher_.PublishStep(bucket, reductions_[bucket.owner].members,
                                                    record, replica, deadline);
    if (!published.ok()) return published;
  }
  return window_->Drain(deadline);
}

absl::Status BucketPipeline::PublishFromFirst(StepNumber step, const ReplicaMemory& replica,
                                              absl::Time deadline) {
  if (context_.world_size() == 1) return absl::OkStatus();
  for (const Bucket& bucket : context_.buckets()) {
    // Where every rank owns everything, rank 0's buckets hold it all.
    if (context_.plan().policy == PartitionPolicy::kReplicated && bucket.owner != 0) continue;
    absl::Status published =
        publisher_.PublishValues(bucket, 0, reductions_[0].members, step, replica, deadline);
    if (!published.ok()) return published;
  }
  return window_->Drain(deadline);
}

absl::Status BucketPipeline::PublishFromOwners(StepNumber step, const ReplicaMemory& replica,
                                               absl::Time deadline) {
  if (!publishes_) return absl::OkStatus();
  for (const Bucket& bucket : context_.buckets()) {
    absl::Status published = publisher_.PublishValues(
        bucket, bucket.owner, reductions_[bucket.owner].members, step, replica, deadline);
    if (!published.ok()) return published;
  }
  return window_->Drain(deadline);
}

}  // namespace optshard
