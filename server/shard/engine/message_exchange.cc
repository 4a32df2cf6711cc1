#include "server/shard/engine/message_exchange.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/gradient_mode.h"
#include "server/shard/engine/step_input.h"

namespace optshard {

absl::StatusOr<std::unique_ptr<StepExchange>> MessageExchange::Create(
    const StepContext& context, std::unique_ptr<BucketUpdater> updater) {
  int64_t staging_bytes = 0;
  for (const Bucket& bucket : context.buckets()) {
    staging_bytes = std::max({staging_bytes, bucket.bytes(), bucket.gradient_bytes()});
  }
  if (context.world_size() == 1) staging_bytes = 0;
  absl::StatusOr<std::unique_ptr<OperationWindow>> window =
      OperationWindow::Create(context.window, context.staging_buffers, staging_bytes);
  if (!window.ok()) return window.status();
  std::unique_ptr<MessageExchange> exchange(new MessageExchange(context, std::move(updater)));
  exchange->window_ = std::move(*window);
  exchange->publisher_.emplace(context, exchange->window_.get());
  return std::unique_ptr<StepExchange>(std::move(exchange));
}

MessageExchange::MessageExchange(const StepContext& context, std::unique_ptr<BucketUpdater> updater)
    : context_(context),
      reduces_(context.gradient_mode() == GradientMode::kReduce && context.world_size() > 1),
      publishes_(context.plan().policy != PartitionPolicy::kReplicated && context.world_size() > 1),
      updater_(std::move(updater)) {
  for (Rank owner = 0; owner < context.world_size(); ++owner) {
    averages_.push_back(AverageOver(context.plan().tree, owner));
  }
}

absl::Status MessageExchange::Check(const ReplicaMemory&) const { return absl::OkStatus(); }

absl::Status MessageExchange::Prepare(const StepRecord& record, const ReplicaMemory& replica,
                                      absl::Time deadline) {
  if (!reduces_) return absl::OkStatus();
  int own = 0;
  for (const Bucket& whole : context_.buckets()) {
    const Buffer result = whole.owner == context_.rank
                              ? context_.store->own_buckets()[own++].reduced_gradient
                              : Buffer();
    const Bucket& bucket = record.rows->Of(whole);
    if (bucket.elements == 0) continue;
    OperationWindow::Operation operation;
    operation.bucket = &bucket;
    operation.start = context_.clock->Now();
    const void* contribution = replica.GradientsInPlace(bucket);
    if (contribution == nullptr) {
      // Where the average is of the gradients' own type it may replace this rank's.
      void* packed = result.dtype() == bucket.gradient_dtype ? result.data() : nullptr;
      if (packed == nullptr) {
        absl::StatusOr<void*> staging = window_->TakeStaging(deadline);
        if (!staging.ok()) return staging.status();
        packed = operation.staging = *staging;
      }
      replica.PackGradients(bucket, packed);
      contribution = packed;
    }
    absl::StatusOr<std::unique_ptr<Ticket>> ticket =
        context_.plane->Reduce(TagOf(context_, record.step, StepPhase::kReduce, bucket.index),
                               ExecutionContext(), averages_[bucket.owner], bucket.gradient_dtype,
                               contribution, result.data(), bucket.elements);
    if (!ticket.ok()) return ticket.status();
    operation.ticket = std::move(*ticket);
    operation.done = [this](const OperationWindow::Operation& reduced) {
      context_.timeline->Record("reduce", reduced.bucket->index, reduced.start,
                                context_.clock->Now());
    };
    absl::Status pushed = window_->Push(std::move(operation), deadline);
    if (!pushed.ok()) return pushed;
  }
  return window_->Drain(deadline);
}

absl::Status MessageExchange::RunTrainerUpdates(const StepRecord& record,
                                                const ReplicaMemory& replica) {
  return updater_->RunTrainerUpdates(
      record, [&](const ShardStore::OwnBucket& own, const BucketSpan& span, SpanUpdate* update) {
        PlaceSpan(replica, own, span, update);
      });
}

absl::Status MessageExchange::Apply(const StepRecord& record, const ReplicaMemory& replica,
                                    absl::Time deadline) {
  int own = 0;
  for (const Bucket& whole : context_.buckets()) {
    const Bucket& bucket = record.rows->Of(whole);
    if (bucket.owner == context_.rank) {
      absl::Status updated = Update(own++, record, replica, deadline);
      if (!updated.ok()) return updated;
    }
    if (!publishes_ || !AnyUpdated(bucket, record)) continue;
    absl::Status published =
        publisher_->PublishStep(bucket, averages_[bucket.owner].members, record, replica, deadline);
    if (!published.ok()) return published;
  }
  return window_->Drain(deadline);
}

// What Apply has received is all there is to wait for.
absl::Status MessageExchange::Complete(const StepRecord&, absl::Time) { return absl::OkStatus(); }

absl::Status MessageExchange::SyncParameters(StepNumber step, const ReplicaMemory& replica,
                                             absl::Time deadline) {
  if (context_.world_size() == 1) return absl::OkStatus();
  for (const Bucket& bucket : context_.buckets()) {
    // Where every rank owns everything, rank 0's buckets hold it all.
    if (context_.plan().policy == PartitionPolicy::kReplicated && bucket.owner != 0) continue;
    absl::Status published =
        publisher_->PublishValues(bucket, 0, averages_[0].members, step, replica, deadline);
    if (!published.ok()) return published;
  }
  return window_->Drain(deadline);
}

absl::Status MessageExchange::PublishParameters(StepNumber step, const ReplicaMemory& replica,
                                                absl::Time deadline) {
  if (!publishes_) return absl::OkStatus();
  for (const Bucket& bucket : context_.buckets()) {
    absl::Status published = publisher_->PublishValues(
        bucket, bucket.owner, averages_[bucket.owner].members, step, replica, deadline);
    if (!published.ok()) return published;
  }
  return window_->Drain(deadline);
}

void MessageExchange::Abandon(absl::Time deadline) { window_->Abandon(deadline); }

void MessageExchange::PlaceSpan(const ReplicaMemory& replica, const ShardStore::OwnBucket& own,
                                const BucketSpan& span, SpanUpdate* update) const {
  const ReplicaTensor& tensor = replica.tensor(span.parameter);
  update->parameter = tensor.parameter.From(span.parameter_offset_elements);
  update->gradient = reduces_ ? ConstBuffer(own.reduced_gradient.From(span.bucket_offset_elements))
                              : tensor.gradient.From(span.parameter_offset_elements);
}

absl::Status MessageExchange::Update(int own, const StepRecord& record,
                                     const ReplicaMemory& replica, absl::Time deadline) {
  const auto place = [&](const ShardStore::OwnBucket& bucket, const BucketSpan& span,
                         SpanUpdate* update) { PlaceSpan(replica, bucket, span, update); };
  return updater_->Update(own, record, place, deadline);
}

}  // namespace optshard
