#include "server/shard/engine/bucket_publisher.h"

#include <algorithm>
#include <memory>

#include "absl/status/statusor.h"

namespace optshard {

absl::Status BucketPublisher::PublishStep(const Bucket& bucket, absl::Span<const Rank> members,
                                          const StepRecord& record, const ReplicaMemory& replica,
                                          absl::Time deadline) {
  Publication publication;
  publication.from = bucket.owner;
  publication.members = members;
  publication.tag = TagOf(context_, record.step, StepPhase::kPublish, bucket.index);
  publication.dtype = context_.state().PublishedAs(bucket.dtype);
  publication.updated = &record.updated;
  return Publish(bucket, publication, replica, deadline);
}

absl::Status BucketPublisher::PublishValues(const Bucket& bucket, Rank from,
                                            absl::Span<const Rank> members, StepNumber step,
                                            const ReplicaMemory& replica, absl::Time deadline) {
  Publication publication;
  publication.from = from;
  publication.members = members;
  publication.tag = TagOf(context_, step, StepPhase::kControl, bucket.index);
  publication.dtype = bucket.dtype;
  return Publish(bucket, publication, replica, deadline);
}

absl::Status BucketPublisher::Publish(const Bucket& bucket, const Publication& publication,
                                      const ReplicaMemory& replica, absl::Time deadline) {
  OperationWindow::Operation operation;
  operation.bucket = &bucket;
  operation.start = context_.clock->Now();
  const absl::Span<const Rank> members = publication.members;
  const bool takes_part = std::find(members.begin(), members.end(), context_.rank) != members.end();
  const bool sends = publication.from == context_.rank;
  const bool rounds = publication.dtype != bucket.dtype;
  const std::vector<bool>* const updated = publication.updated;
  void* data = rounds || !takes_part ? nullptr : replica.ParametersInPlace(bucket);
  if (data == nullptr && takes_part) {
    absl::StatusOr<void*> staging = window_->TakeStaging(deadline);
    if (!staging.ok()) return staging.status();
    data = operation.staging = *staging;
    if (sends && !rounds) replica.PackParameters(bucket, data);
    if (sends && rounds) replica.PackParametersAs(publication.dtype, bucket, *updated, data);
  }
  absl::StatusOr<std::unique_ptr<Ticket>> ticket =
      context_.plane->Publish(publication.tag, ExecutionContext(), publication.from, members, data,
                              bucket.elements * SizeOf(publication.dtype));
  if (!ticket.ok()) return ticket.status();
  operation.ticket = std::move(*ticket);
  if (takes_part) {
    operation.done = [this, sends, dtype = publication.dtype, updated,
                      &replica](const OperationWindow::Operation& published) {
      const Bucket& bucket = *published.bucket;
      if (!sends && dtype != bucket.dtype) {
        replica.UnpackParametersOf(dtype, bucket, *updated, published.staging);
      } else if (!sends && published.staging != nullptr) {
        replica.UnpackParameters(bucket, published.staging);
      }
      if (!sends && received_) received_(bucket, updated);
      context_.timeline->Record("publish", bucket.index, published.start, context_.clock->Now());
    };
  }
  return window_->Push(std::move(operation), deadline);
}

}  // namespace optshard
