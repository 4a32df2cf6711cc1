#include "server/shard/engine/bucket_updater.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/shard/engine/workspaces.h"
#include "server/update/written_memory.h"

namespace optshard {
absl::StatusOr<std::unique_ptr<BucketUpdater>> BucketUpdater::Create(
    const StepContext& context, const ExecutionContext& where) {
  absl::StatusOr<BucketTasks> tasks = BucketTasks::Create(context);
  if (!tasks.ok()) return tasks.status();
  const Workspaces needed = WorkspacesFor(context.buckets(), context.rank, context.space(),
                                          *context.groups, context.threads);
  absl::StatusOr<MappedMemory> memory = MappedMemory::Allocate(
      needed.bytes(), absl::StrCat("what the update rules compute in on rank ", context.rank));
  if (!memory.ok()) return memory.status();
  std::unique_ptr<BucketUpdater> updater(
      new BucketUpdater(context, where, *std::move(tasks), *std::move(memory)));
  absl::StatusOr<std::unique_ptr<Executor>> executor = context.make_executor(
      {&updater->threads_, context.driver, updater->workspaces_.data(), needed.bytes_each});
  if (!executor.ok()) return executor.status();
  updater->executor_ = *std::move(executor);
  return updater;
}

BucketUpdater::BucketUpdater(const StepContext& context, const ExecutionContext& where,
                             BucketTasks tasks, MappedMemory workspaces)
    : context_(context),
      where_(where),
      tasks_of_(std::move(tasks)),
      threads_(context.threads),
      workspaces_(std::move(workspaces)),
      trainer_updates_(context, &threads_) {}

absl::Status BucketUpdater::Update(int own, const StepRecord& record, SpanPlace place,
                                   absl::Time deadline) {
  const absl::Time start = context_.clock->Now();
  ShardStore& store = *context_.store;
  const bool is_trainers = tasks_of_.GroupOf(own).trainer_update != nullptr;
  const UpdateRule& rule = tasks_of_.RuleOf(own);
  writing_.clear();
  tasks_.clear();
  for (const int member : tasks_of_.Batch(own)) {
    if (!tasks_of_.IsUpdated(member, record)) {
      store.MarkUnchanged(member, record.step);
      continue;
    }
    if (!is_trainers) tasks_of_.Append(member, record, place, &tasks_);
    writing_.push_back(member);
  }
  if (writing_.empty()) return absl::OkStatus();
  absl::Status updated;
  if (rule.spec().element_wise && !is_trainers) {
    updated = RunInPieces(own, deadline);
  } else {
    for (const int member : writing_) store.BeginWrite(member);
    updated = is_trainers ? trainer_updates_.Store(store.own_buckets()[own], record, place)
                          : RunTasks(rule, deadline);
  }
  if (!updated.ok()) return updated;
  for (const int member : writing_) store.EndWrite(member, record.step);
  context_.timeline->Record("update", store.own_buckets()[own].bucket->index, start,
                            context_.clock->Now());
  return absl::OkStatus();
}

absl::Status BucketUpdater::RunTasks(const UpdateRule& rule, absl::Time deadline) {
  const absl::StatusOr<std::unique_ptr<Ticket>> ticket = executor_->Start(where_, rule, tasks_);
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
    updated = RunTasks(tasks_of_.RuleOf(own), deadline);
  });
  return updated;
}

}  // namespace optshard
