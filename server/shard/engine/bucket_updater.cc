#include "server/shard/engine/bucket_updater.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/shard/engine/workspaces.h"
#include "server/update/written_memory.h"

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

absl::StatusOr<std::unique_ptr<BucketUpdater>> BucketUpdater::Create(const StepContext& context) {
  absl::Status whole = CheckWhole(context);
  if (!whole.ok()) return whole;
  const Workspaces needed = WorkspacesFor(context.buckets(), context.rank, context.space(),
                                          *context.groups, context.threads);
  absl::StatusOr<MappedMemory> memory = MappedMemory::Allocate(
      needed.bytes(), absl::StrCat("what the update rules compute in on rank ", context.rank));
  if (!memory.ok()) return memory.status();
  std::unique_ptr<BucketUpdater> updater(new BucketUpdater(context, *std::move(memory)));
  absl::StatusOr<std::unique_ptr<Executor>> executor = context.make_executor(
      {&updater->threads_, context.driver, updater->workspaces_.data(), needed.bytes_each});
  if (!executor.ok()) return executor.status();
  updater->executor_ = *std::move(executor);
  return updater;
}

BucketUpdater::BucketUpdater(const StepContext& context, MappedMemory workspaces)
    : context_(context),
      threads_(context.threads),
      workspaces_(std::move(workspaces)),
      trainer_updates_(context, &threads_),
      batches_(context.store->own_buckets().size()) {
  std::vector<int> first(context.space().group_count(), -1);  // own bucket of the group
  for (size_t own = 0; own < batches_.size(); ++own) {
    const auto member = static_cast<int>(own);
    const int group = GroupOf(member);
    if (UpdatesByBucket(member) || first[group] < 0) first[group] = member;
    batches_[first[group]].push_back(member);
  }
}

absl::Status BucketUpdater::Update(int own, const StepRecord& record, SpanPlace place,
                                   absl::Time deadline) {
  const absl::Time start = context_.clock->Now();
  ShardStore& store = *context_.store;
  const bool is_trainers = trainer_updates_.Runs(GroupOf(own));
  writing_.clear();
  tasks_.clear();
  for (const int member : batches_[own]) {
    const ShardStore::OwnBucket& bucket = store.own_buckets()[member];
    if (!AnyUpdated(record.rows->Of(*bucket.bucket), record)) {
      store.MarkUnchanged(member, record.step);
      continue;
    }
    if (!is_trainers) AddTasks(bucket, RuleOf(own).spec().element_wise, record, place);
    writing_.push_back(member);
  }
  if (writing_.empty()) return absl::OkStatus();
  absl::Status updated;
  if (RuleOf(own).spec().element_wise && !is_trainers) {
    updated = RunInPieces(own, deadline);
  } else {
    for (const int member : writing_) store.BeginWrite(member);
    updated = is_trainers ? trainer_updates_.Store(store.own_buckets()[own], record, place)
                          : RunTasks(RuleOf(own), deadline);
  }
  if (!updated.ok()) return updated;
  for (const int member : writing_) store.EndWrite(member, record.step);
  context_.timeline->Record("update", store.own_buckets()[own].bucket->index, start,
                            context_.clock->Now());
  return absl::OkStatus();
}

absl::Status BucketUpdater::RunTasks(const UpdateRule& rule, absl::Time deadline) {
  const absl::StatusOr<std::unique_ptr<Ticket>> ticket =
      executor_->Start(ExecutionContext(), rule, tasks_);
  if (!ticket.ok()) return ticket.status();
  return (*ticket)->Wait(deadline);
}

absl::Status BucketUpdater::RunInPieces(int own, absl::Time deadline) {
  const auto announce = [this] {
    std::vector<MemoryRange> written;
    for (const UpdateTask& task : tasks_) {
      ForEachWritten(task.span, [&](const void* data, int64_t bytes) {
        written.push_back({static_cast<const char*>(data), static_cast<size_t>(bytes)});
      });
    }
    return written;
  };
  absl::Status updated;
  context_.store->WriteInPieces(own, announce, [&](const BlockPieces* pieces) {
    const BeforePiece before = [pieces](const SpanUpdate& piece) {
      ForEachWritten(piece, [pieces](const void* data, int64_t bytes) {
        pieces->Before(data, static_cast<size_t>(bytes));
      });
    };
    for (UpdateTask& task : tasks_) task.before_piece = pieces == nullptr ? nullptr : &before;
    updated = RunTasks(RuleOf(own), deadline);
  });
  return updated;
}

void BucketUpdater::AddTasks(const ShardStore::OwnBucket& bucket, bool element_wise,
                             const StepRecord& record, SpanPlace place) {
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
    tasks_.push_back(task);
  }
}

}  // namespace optshard
