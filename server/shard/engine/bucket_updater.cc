#include "server/shard/engine/bucket_updater.h"

namespace optshard {

BucketUpdater::BucketUpdater(const StepContext& context)
    : context_(context), threads_(context.threads) {}

void BucketUpdater::Update(int own, const StepRecord& record, Place place) {
  const ShardStore::OwnBucket& bucket = context_.store->own_buckets()[own];
  if (!AnyUpdated(*bucket.bucket, record)) {
    context_.store->MarkUnchanged(own, record.step);
    return;
  }
  const absl::Time start = context_.clock->Now();
  tasks_.clear();
  for (const BucketSpan& span : bucket.bucket->spans) {
    if (!record.updated[span.parameter]) continue;
    SpanTask task;
    task.coefficients = &record.coefficients[span.parameter];
    for (int s = 0; s < bucket.slot_count; ++s) {
      task.span.slots[s] = bucket.slots[s].From(span.bucket_offset_elements);
    }
    task.span.master = bucket.master.From(span.bucket_offset_elements);
    task.span.elements = span.elements;
    place(span, &task.span);
    tasks_.push_back(task);
  }
  context_.store->BeginWrite(own);
  threads_.Run(*context_.rule, context_.driver, tasks_);
  context_.store->EndWrite(own, record.step);
  context_.timeline->Record("update", bucket.bucket->index, start, context_.clock->Now());
}

}  // namespace optshard
