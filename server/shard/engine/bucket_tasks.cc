#include "server/shard/engine/bucket_tasks.h"

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/strings/str_format.h"

namespace optshard {
namespace {

// Where a rule needs whole parameters, this rank has all of each. The plan is the coordinator's.
absl::Status CheckWhole(const StepContext& context) {
  std::map<int32_t, int64_t> owned;  // elements, by parameter
  for (const ShardStore::OwnBucket& own : context.store->own_buckets()) {
    if ((*context.groups)[own.bucket->group].rule->spec().element_wise) continue;
    for (const BucketSpan& span : own.bucket->spans) owned[span.parameter] += span.elements;
  }
  for (const auto& [parameter, elements] : owned) {
    const ParameterSpec& spec = context.space().parameter(parameter);
    if (elements == spec.elements()) continue;
    return absl::InternalError(absl::StrFormat(
        "the plan gives rank %d %d elements of parameter %d \"%s\", expected all %d: the rule of "
        "its group needs whole parameters",
        context.rank, elements, parameter, spec.name, spec.elements()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BucketTasks> BucketTasks::Create(const StepContext& context) {
  absl::Status whole = CheckWhole(context);
  if (!whole.ok()) return whole;
  return BucketTasks(context);
}

BucketTasks::BucketTasks(const StepContext& context)
    : context_(context), batches_(context.store->own_buckets().size()) {
  std::vector<int> first(context.space().group_count(), -1);  // own bucket of the group
  for (size_t own = 0; own < batches_.size(); ++own) {
    const auto member = static_cast<int>(own);
    const GroupUpdate& update = GroupOf(member);
    const bool one_by_one = update.rule->spec().element_wise || update.trainer_update != nullptr;
    int& of_group = first[Own(member).bucket->group];
    if (one_by_one || of_group < 0) of_group = member;
    batches_[of_group].push_back(member);
  }
}

const GroupUpdate& BucketTasks::GroupOf(int own) const {
  return (*context_.groups)[Own(own).bucket->group];
}

bool BucketTasks::IsUpdated(int own, const StepRecord& record) const {
  return AnyUpdated(record.rows->Of(*Own(own).bucket), record);
}

void BucketTasks::Append(int own, const StepRecord& record, SpanPlace place,
                         std::vector<UpdateTask>* tasks) const {
  const ShardStore::OwnBucket& bucket = Own(own);
  const bool element_wise = RuleOf(own).spec().element_wise;
  const std::vector<BucketSpan>& spans = record.rows->Of(*bucket.bucket).spans;
  for (size_t s = 0; s < spans.size(); ++s) {
    const BucketSpan& span = spans[s];
    if (!record.updated[span.parameter]) continue;
    // State, gradient and parameter go on behind the span that begins a whole parameter.
    if (!element_wise && span.parameter_offset_elements != 0) continue;
    const ParameterSpec& parameter = context_.space().parameter(span.parameter);
    UpdateTask task;
    task.coefficients = &record.coefficients[span.parameter];
    const int whole = record.rows->WholeSpan(*bucket.bucket, static_cast<int>(s));
    task.span.slots = bucket.states[whole].slots;
    task.span.master = bucket.states[whole].master;
    if (parameter.dtype == DType::kFloat32) {
      task.span.rounded_to = context_.state().PublishedAs(parameter.dtype);
    }
    task.span.correction = bucket.states[whole].correction;
    const int64_t skipped =
        span.parameter_offset_elements - bucket.bucket->spans[whole].parameter_offset_elements;
    task.span = task.span.Part(skipped, element_wise ? span.elements : parameter.elements());
    task.span.shape = parameter.shape;
    place(bucket, span, &task.span);
    tasks->push_back(task);
  }
}

}  // namespace optshard
