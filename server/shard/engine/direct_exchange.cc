#include "server/shard/engine/direct_exchange.h"

#include <utility>

#include "absl/status/statusor.h"
#include "common/gradient_mode.h"
#include "server/shard/engine/step_input.h"

namespace optshard {

DirectExchange::DirectExchange(const StepContext& context, std::unique_ptr<BucketUpdater> updater)
    : context_(context),
      publishes_(context.plan().policy != PartitionPolicy::kReplicated),
      replicas_(context, *context.plane->peer_replicas(),
                AverageOver(context.plan().tree, context.rank).members),
      group_sizes_(AverageOver(context.plan().tree, context.rank).group_sizes),
      updater_(std::move(updater)),
      gathered_(context.world_size()) {}

absl::Status DirectExchange::Check(const ReplicaMemory& replica) const {
  return replicas_.Check(replica);
}

absl::Status DirectExchange::Prepare(const StepRecord&, const ReplicaMemory&, absl::Time) {
  return absl::OkStatus();
}

absl::Status DirectExchange::RunTrainerUpdates(const StepRecord& record,
                                               const ReplicaMemory& replica) {
  return updater_->RunTrainerUpdates(
      record, [&](const ShardStore::OwnBucket&, const BucketSpan& span, SpanUpdate* update) {
        PlaceSpan(record, replica, span, update);
      });
}

absl::Status DirectExchange::Apply(const StepRecord& record, const ReplicaMemory& replica,
                                   absl::Time deadline) {
  replicas_.BeginStep();
  const int own_count = static_cast<int>(context_.store->own_buckets().size());
  const auto place = [&](const ShardStore::OwnBucket&, const BucketSpan& span, SpanUpdate* update) {
    PlaceSpan(record, replica, span, update);
  };
  for (int own = 0; own < own_count; ++own) {
    absl::Status updated = updater_->Update(own, record, place, deadline);
    if (!updated.ok()) return updated;
  }
  return absl::OkStatus();
}

absl::Status DirectExchange::Complete(const StepRecord& record, absl::Time deadline) {
  return Barrier(TagOf(context_, record.step, StepPhase::kPublish, 0), deadline);
}

absl::Status DirectExchange::SyncParameters(StepNumber step, const ReplicaMemory&,
                                            absl::Time deadline) {
  replicas_.CopyAllFrom(0);
  // Rank 0 may change its values once all have them.
  return Barrier(TagOf(context_, step, StepPhase::kControl, 0), deadline);
}

absl::Status DirectExchange::PublishParameters(StepNumber, const ReplicaMemory&, absl::Time) {
  if (publishes_) replicas_.CopyOwnToOthers();
  return absl::OkStatus();
}

// A barrier's ticket needs no other end: it touches no memory of a caller.
void DirectExchange::Abandon(absl::Time) {}

void DirectExchange::PlaceSpan(const StepRecord& record, const ReplicaMemory& replica,
                               const BucketSpan& span, SpanUpdate* update) {
  const ReplicaTensor& tensor = replica.tensor(span.parameter);
  update->parameter = tensor.parameter.From(span.parameter_offset_elements);
  if (context_.gradient_mode() == GradientMode::kReduce) {
    update->gradient = ConstBuffer(nullptr, replicas_.gradient_dtype(span));
    update->replicas.gradients = replicas_.Gradients(record.has_gradient, *record.rows, span);
    update->replicas.group_sizes = group_sizes_;
  } else {
    update->gradient = tensor.gradient.From(span.parameter_offset_elements);
  }
  if (publishes_) update->replicas.copies = replicas_.copies(span);
  update->replicas.first = replicas_.First(span);
}

absl::Status DirectExchange::Barrier(const StepTag& tag, absl::Time deadline) {
  const char here = 1;
  absl::StatusOr<std::unique_ptr<Ticket>> ticket =
      context_.plane->AllGather(tag, ExecutionContext(), &here, gathered_.data(), 1);
  if (!ticket.ok()) return ticket.status();
  return (*ticket)->Wait(deadline);
}

}  // namespace optshard
