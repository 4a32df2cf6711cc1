// What the update of the buckets that a rank owns consists of: which are updated together, and the
// tasks of an executor for each.
#ifndef OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_TASKS_H_
#define OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_TASKS_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/shard/engine/step_exchange.h"
#include "server/shard/engine/step_record.h"
#include "server/update/executor.h"

namespace optshard {

// Fills in where gradient and parameter of a span of an own bucket lie. Gradients of a parameter
// that is in several buckets lie one behind the other.
using SpanPlace = absl::FunctionRef<void(const ShardStore::OwnBucket& own, const BucketSpan& span,
                                         SpanUpdate* update)>;

// Thread-compatible.
class BucketTasks {
 public:
  // INTERNAL: a plan that cuts a parameter whose rule needs it whole.
  static absl::StatusOr<BucketTasks> Create(const StepContext& context);

  const GroupUpdate& GroupOf(int own) const;
  const UpdateRule& RuleOf(int own) const { return *GroupOf(own).rule; }

  // The own buckets that are updated at the turn of this one. Where the rule needs whole
  // parameters, all of a group are at the turn of its first one, and none at that of the others.
  absl::Span<const int> Batch(int own) const { return batches_[own]; }

  // Whether the step updates some of the own bucket's parameters.
  bool IsUpdated(int own, const StepRecord& record) const;

  // Appends the tasks of what the record lists as updated of an own bucket, by its rule.
  void Append(int own, const StepRecord& record, SpanPlace place,
              std::vector<UpdateTask>* tasks) const;

 private:
  explicit BucketTasks(const StepContext& context);

  const ShardStore::OwnBucket& Own(int own) const { return context_.store->own_buckets()[own]; }

  StepContext context_;
  std::vector<std::vector<int>> batches_;  // by own bucket
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_ENGINE_BUCKET_TASKS_H_
