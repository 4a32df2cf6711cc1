#include "server/shard/engine/message_exchange.h"

#include <utility>

#include "common/gradient_mode.h"

namespace optshard {

absl::StatusOr<std::unique_ptr<StepExchange>> MessageExchange::Create(
    const StepContext& context, std::unique_ptr<BucketUpdater> updater) {
  BucketPipeline::Reductions averages;
  for (Rank owner = 0; owner < context.world_size(); ++owner) {
    averages.push_back(AverageOver(context.plan().tree, owner));
  }
  absl::StatusOr<std::unique_ptr<BucketPipeline>> pipeline =
      BucketPipeline::Create(context, std::move(averages), [](DType gradient) { return gradient; });
  if (!pipeline.ok()) return pipeline.status();
  return std::unique_ptr<StepExchange>(
      new MessageExchange(context, std::move(updater), *std::move(pipeline)));
}

MessageExchange::MessageExchange(const StepContext& context, std::unique_ptr<BucketUpdater> updater,
                                 std::unique_ptr<BucketPipeline> pipeline)
    : reduces_(context.gradient_mode() == GradientMode::kReduce && context.world_size() > 1),
      updater_(std::move(updater)),
      pipeline_(std::move(pipeline)) {}

absl::Status MessageExchange::Check(const ReplicaMemory&) const { return absl::OkStatus(); }

absl::Status MessageExchange::Prepare(const StepRecord& record, const ReplicaMemory& replica,
                                      absl::Time deadline) {
  if (!reduces_) return absl::OkStatus();
  const auto contribute = [&](const Bucket& bucket,
                              Buffer average) -> absl::StatusOr<BucketPipeline::Contribution> {
    BucketPipeline::Contribution contribution;
    contribution.data = replica.GradientsInPlace(bucket);
    if (contribution.data != nullptr) return contribution;
    // Where the average is of the gradients' own type it may replace this rank's.
    void* packed = average.dtype() == bucket.gradient_dtype ? average.data() : nullptr;
    if (packed == nullptr) {
      absl::StatusOr<void*> staging = pipeline_->TakeStaging(deadline);
      if (!staging.ok()) return staging.status();
      packed = contribution.staging = *staging;
    }
    replica.PackGradients(bucket, packed);
    contribution.data = packed;
    return contribution;
  };
  return pipeline_->Reduce(record, contribute, deadline);
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
  const auto place = [&](const ShardStore::OwnBucket& own, const BucketSpan& span,
                         SpanUpdate* update) { PlaceSpan(replica, own, span, update); };
  const auto update = [&](int own) { return updater_->Update(own, record, place, deadline); };
  return pipeline_->Apply(record, replica, update, deadline);
}

// What Apply has received is all there is to wait for.
absl::Status MessageExchange::Complete(const StepRecord&, absl::Time) { return absl::OkStatus(); }

absl::Status MessageExchange::SyncParameters(StepNumber step, const ReplicaMemory& replica,
                                             absl::Time deadline) {
  return pipeline_->PublishFromFirst(step, replica, deadline);
}

absl::Status MessageExchange::PublishParameters(StepNumber step, const ReplicaMemory& replica,
                                                absl::Time deadline) {
  return pipeline_->PublishFromOwners(step, replica, deadline);
}

void MessageExchange::Abandon(absl::Time deadline) { pipeline_->Abandon(deadline); }

void MessageExchange::PlaceSpan(const ReplicaMemory& replica, const ShardStore::OwnBucket& own,
                                const BucketSpan& span, SpanUpdate* update) const {
  const ReplicaTensor& tensor = replica.tensor(span.parameter);
  update->parameter = tensor.parameter.From(span.parameter_offset_elements);
  update->gradient = reduces_ ? ConstBuffer(own.reduced_gradient.From(span.bucket_offset_elements))
                              : tensor.gradient.From(span.parameter_offset_elements);
}

}  // namespace optshard
