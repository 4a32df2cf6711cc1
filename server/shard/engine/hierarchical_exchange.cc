#include "server/shard/engine/hierarchical_exchange.h"

#include <algorithm>
#include <utility>

#include "common/dataplane/tree_average.h"
#include "common/gradient_mode.h"
#include "server/shard/engine/step_input.h"

namespace optshard {
namespace {

// As GatherInNode's buckets in tags.
enum NodeRound : int32_t { kPresence = 0, kIsComplete = 1, kIsSynchronised = 2 };

const std::vector<Rank>& GroupOf(const ReductionTree& tree, Rank rank) {
  return *std::find_if(tree.node_groups.begin(), tree.node_groups.end(),
                       [rank](const std::vector<Rank>& group) {
                         return std::find(group.begin(), group.end(), rank) != group.end();
                       });
}

Reduction SumOfNodes(const ReductionTree& tree, Rank owner) {
  const std::vector<Rank>& own = GroupOf(tree, owner);
  const auto place = static_cast<size_t>(std::find(own.begin(), own.end(), owner) - own.begin());
  Reduction reduction;
  reduction.owner = owner;
  reduction.divisor = 0;
  for (const std::vector<Rank>& group : tree.node_groups) {
    // The owner itself in its own node.
    reduction.members.push_back(group[place % group.size()]);
    reduction.group_sizes.push_back(1);
    reduction.divisor += static_cast<int>(group.size());
  }
  return reduction;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepExchange>> HierarchicalExchange::Create(
    const StepContext& context, std::unique_ptr<BucketUpdater> updater) {
  int64_t staging_bytes = 0;
  for (const Bucket& bucket : context.buckets()) {
    const auto sum = static_cast<int64_t>(SizeOf(ArithmeticOf(bucket.gradient_dtype)));
    staging_bytes = std::max({staging_bytes, bucket.bytes(), bucket.elements * sum});
  }
  absl::StatusOr<std::unique_ptr<OperationWindow>> window =
      OperationWindow::Create(context.window, context.staging_buffers, staging_bytes);
  if (!window.ok()) return window.status();
  return std::unique_ptr<StepExchange>(
      new HierarchicalExchange(context, std::move(updater), *std::move(window)));
}

HierarchicalExchange::HierarchicalExchange(const StepContext& context,
                                           std::unique_ptr<BucketUpdater> updater,
                                           std::unique_ptr<OperationWindow> window)
    : context_(context),
      node_(*context.plane->node()),
      reduces_(context.gradient_mode() == GradientMode::kReduce),
      publishes_(context.plan().policy != PartitionPolicy::kReplicated),
      replicas_(context, *node_.plane->peer_replicas(), GroupOf(context.plan().tree, context.rank)),
      updater_(std::move(updater)),
      window_(std::move(window)),
      publisher_(context, window_.get(),
                 [this](const Bucket& bucket, const std::vector<bool>* updated) {
                   CopyInNode(bucket, updated);
                 }),
      has_gradient_(context.world_size()) {
  for (Rank owner = 0; owner < context.world_size(); ++owner) {
    reductions_.push_back(SumOfNodes(context.plan().tree, owner));
  }
}

absl::Status HierarchicalExchange::Check(const ReplicaMemory& replica) const {
  return replicas_.Check(replica);
}

absl::Status HierarchicalExchange::Prepare(const StepRecord& record, const ReplicaMemory& replica,
                                           absl::Time deadline) {
  if (!reduces_) return absl::OkStatus();
  replicas_.BeginStep();
  absl::Status met = GatherPresence(record.step, replica, deadline);
  if (!met.ok()) return met;
  int own = 0;
  for (const Bucket& whole : context_.buckets()) {
    void* const result = whole.owner == context_.rank
                             ? context_.store->own_buckets()[own++].reduced_gradient.data()
                             : nullptr;
    const Bucket& bucket = record.rows->Of(whole);
    if (bucket.elements == 0) continue;
    const Reduction& reduction = reductions_[bucket.owner];
    OperationWindow::Operation operation;
    operation.bucket = &bucket;
    operation.start = context_.clock->Now();
    void* sum = result;
    if (sum == nullptr && reduction.Has(context_.rank)) {
      absl::StatusOr<void*> staging = window_->TakeStaging(deadline);
      if (!staging.ok()) return staging.status();
      sum = operation.staging = *staging;
    }
    if (sum != nullptr) SumNode(bucket, *record.rows, sum);
    absl::StatusOr<std::unique_ptr<Ticket>> ticket = context_.plane->Reduce(
        TagOf(context_, record.step, StepPhase::kReduce, bucket.index), ExecutionContext(),
        reduction, ArithmeticOf(bucket.gradient_dtype), sum, result, bucket.elements);
    if (!ticket.ok()) return ticket.status();
    operation.ticket = std::move(*ticket);
    if (sum != nullptr) {
      operation.done = [this](const OperationWindow::Operation& reduced) {
        context_.timeline->Record("reduce", reduced.bucket->index, reduced.start,
                                  context_.clock->Now());
      };
    }
    absl::Status pushed = window_->Push(std::move(operation), deadline);
    if (!pushed.ok()) return pushed;
  }
  return window_->Drain(deadline);
}

absl::Status HierarchicalExchange::RunTrainerUpdates(const StepRecord& record,
                                                     const ReplicaMemory& replica) {
  return updater_->RunTrainerUpdates(
      record, [&](const ShardStore::OwnBucket& own, const BucketSpan& span, SpanUpdate* update) {
        PlaceSpan(replica, own, span, update);
      });
}

// Whoever has all votes may write to the replicas of its node: each of its ranks has voted, and
// reads nothing of its own that others write.
absl::Status HierarchicalExchange::Apply(const StepRecord& record, const ReplicaMemory& replica,
                                         absl::Time deadline) {
  const auto place = [&](const ShardStore::OwnBucket& own, const BucketSpan& span,
                         SpanUpdate* update) { PlaceSpan(replica, own, span, update); };
  int own = 0;
  for (const Bucket& whole : context_.buckets()) {
    const Bucket& bucket = record.rows->Of(whole);
    if (bucket.owner == context_.rank) {
      absl::Status updated = updater_->Update(own++, record, place, deadline);
      if (!updated.ok()) return updated;
    }
    if (!publishes_ || !AnyUpdated(bucket, record)) continue;
    absl::Status published = publisher_.PublishStep(bucket, reductions_[bucket.owner].members,
                                                    record, replica, deadline);
    if (!published.ok()) return published;
  }
  return window_->Drain(deadline);
}

// Others of the node write to this rank's replica.
absl::Status HierarchicalExchange::Complete(const StepRecord& record, absl::Time deadline) {
  std::vector<char> all;
  return GatherInNode(TagOf(context_, record.step, StepPhase::kPublish, kIsComplete), {1}, &all,
                      deadline);
}

absl::Status HierarchicalExchange::SyncParameters(StepNumber step, const ReplicaMemory& replica,
                                                  absl::Time deadline) {
  for (const Bucket& bucket : context_.buckets()) {
    // Where every rank owns everything, rank 0's buckets hold it all.
    if (context_.plan().policy == PartitionPolicy::kReplicated && bucket.owner != 0) continue;
    absl::Status published =
        publisher_.PublishValues(bucket, 0, reductions_[0].members, step, replica, deadline);
    if (!published.ok()) return published;
  }
  absl::Status drained = window_->Drain(deadline);
  if (!drained.ok()) return drained;
  if (context_.rank == 0) replicas_.CopyAllToOthers();
  // No rank goes on before its replica has all values.
  std::vector<char> all;
  return GatherInNode(TagOf(context_, step, StepPhase::kControl, kIsSynchronised), {1}, &all,
                      deadline);
}

// What other nodes own is in this node's replicas once whoever stands for it has all of it.
absl::Status HierarchicalExchange::PublishParameters(StepNumber step, const ReplicaMemory& replica,
                                                     absl::Time deadline) {
  if (!publishes_) return absl::OkStatus();
  for (const Bucket& bucket : context_.buckets()) {
    absl::Status published = publisher_.PublishValues(
        bucket, bucket.owner, reductions_[bucket.owner].members, step, replica, deadline);
    if (!published.ok()) return published;
  }
  replicas_.CopyOwnToOthers();
  return window_->Drain(deadline);
}

void HierarchicalExchange::Abandon(absl::Time deadline) { window_->Abandon(deadline); }

absl::Status HierarchicalExchange::GatherPresence(StepNumber step, const ReplicaMemory& replica,
                                                  absl::Time deadline) {
  const int parameters = context_.space().parameter_count();
  std::vector<char> own((parameters + 7) / 8);
  for (int p = 0; p < parameters; ++p) {
    if (replica.tensor(p).gradient) own[p / 8] = static_cast<char>(own[p / 8] | 1 << p % 8);
  }
  std::vector<char> all;
  absl::Status gathered =
      GatherInNode(TagOf(context_, step, StepPhase::kReduce, kPresence), own, &all, deadline);
  if (!gathered.ok()) return gathered;
  for (const Rank rank : node_.ranks) {
    const char* const bits = all.data() + rank * own.size();
    has_gradient_[rank].resize(parameters);
    for (int p = 0; p < parameters; ++p) has_gradient_[rank][p] = (bits[p / 8] >> p % 8 & 1) != 0;
  }
  return absl::OkStatus();
}

void HierarchicalExchange::SumNode(const Bucket& bucket, const TouchedRows& rows, void* to) {
  const Buffer sum(to, ArithmeticOf(bucket.gradient_dtype));
  const int ranks = static_cast<int>(node_.ranks.size());
  for (const BucketSpan& span : bucket.spans) {
    ReduceGroups({ranks}, 1, bucket.gradient_dtype, replicas_.Gradients(has_gradient_, rows, span),
                 replicas_.First(span), span.elements,
                 sum.From(span.bucket_offset_elements).data());
  }
}

absl::Status HierarchicalExchange::GatherInNode(const StepTag& tag, const std::vector<char>& own,
                                                std::vector<char>* gathered, absl::Time deadline) {
  gathered->resize(own.size() * context_.world_size());
  absl::StatusOr<std::unique_ptr<Ticket>> ticket =
      node_.plane->AllGather(tag, ExecutionContext(), own.data(), gathered->data(), own.size());
  if (!ticket.ok()) return ticket.status();
  return (*ticket)->Wait(deadline);
}

void HierarchicalExchange::PlaceSpan(const ReplicaMemory& replica, const ShardStore::OwnBucket& own,
                                     const BucketSpan& span, SpanUpdate* update) {
  const ReplicaTensor& tensor = replica.tensor(span.parameter);
  update->parameter = tensor.parameter.From(span.parameter_offset_elements);
  update->gradient = reduces_ ? ConstBuffer(own.reduced_gradient.From(span.bucket_offset_elements))
                              : tensor.gradient.From(span.parameter_offset_elements);
  if (publishes_) update->replicas.copies = replicas_.copies(span);
  update->replicas.first = replicas_.First(span);
}

void HierarchicalExchange::CopyInNode(const Bucket& bucket,
                                      const std::vector<bool>* updated) const {
  for (const BucketSpan& span : bucket.spans) {
    if (updated == nullptr || (*updated)[span.parameter]) replicas_.CopyToOthers(span);
  }
}

}  // namespace optshard
