#include "server/shard/engine/bucket_updater.h"

#include <memory>

#include "absl/status/statusor.h"

namespace optshard {

BucketUpdater::BucketUpdater(const StepContext& context)
    : context_(context), threads_(context.threads), executor_(&threads_, context.driver) {}

absl::Status BucketUpdater::Update(int own, const StepRecord& record, Place place,
                                   absl::Time deadline) {
  const ShardStore::OwnBucket& bucket = context_.store->own_buckets()[own];
  if (!AnyUpdated(*bucket.bucket, record)) {
    context_.store->MarkUnchanged(own, record.step);
    return absl::OkStatus();
  }
  const absl::Time start = context_.clock->Now();
  tasks_.clear();
  for (size_t s = 0; s < bucket.states.size(); ++s) {
    const BucketSpan& span = bucket.bucket->spans[s];
    if (!record.updated[span.parameter]) continue;
    UpdateTask task;
    task.coefficients = &record.coefficients[span.parameter];
    task.span.slots = bucket.states[s].slots;
    task.span.master = bucket.states[s].master;
    task.span.correction = bucket.states[s].correction;
    task.span.elements = span.elements;
    place(span, &task.span);
    tasks_.push_back(task);
  }
  context_.store->BeginWrite(own);
  const UpdateRule& rule = *(*context_.groups)[bucket.bucket->group].rule;
  const absl::StatusOr<std::unique_ptr<Ticket>> ticket =
      executor_.Start(ExecutionContext(), rule, tasks_);
  if (!ticket.ok()) return ticket.status();
  absl::Status updated = (*ticket)->Wait(deadline);
  if (!updated.ok()) return updated;
  context_.store->EndWrite(own, record.step);
  context_.timeline->Record("update", bucket.bucket->index, start, context_.clock->Now());
  return absl::OkStatus();
}

}  // namespace optshard
