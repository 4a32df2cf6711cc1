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
  for (size_t s = 0; s < bucket.states.size(); ++s) {
    const BucketSpan& span = bucket.bucket->spans[s];
    if (!record.updated[span.parameter]) continue;
    SpanTask task;
    task.coefficients = &record.coefficients[span.parameter];
    task.span.slots = bucket.states[s].slots;
    task.span.master = bucket.states[s].master;
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
