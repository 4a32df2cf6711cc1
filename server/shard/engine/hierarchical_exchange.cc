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
  BucketPipeline::Reductions sums;
  for (Rank owner = 0; owner < context.world_size(); ++owner) {
    sums.push_back(SumOfNodes(context.plan().tree, owner));
  }
  std::unique_ptr<HierarchicalExchange> exchange(
      new HierarchicalExchange(context, std::move(updater)));
  const auto received = [to = exchange.get()](const Bucket& bucket,
                                              const std::vector<bool>* updated) {
    to->CopyInNode(bucket, updated);
  };
  absl::StatusOr<std::unique_ptr<BucketPipeline>> pipeline =
      BucketPipeline::Create(context, std::move(sums), ArithmeticOf, received);
  if (!pipeline.ok()) return pipeline.status();
  exchange->pipeline_ = *std::move(pipeline);
  return std::unique_ptr<StepExchange>(std::move(exchange));
}

HierarchicalExchange::HierarchicalExchange(const StepContext& context,
                                           std::unique_ptr<BucketUpdater> updater)
    : context_(context),
      node_(*context.plane->node()),
      reduces_(context.gradient_mode() == GradientMode::kReduce),
      publishes_(context.plan().policy != PartitionPolicy::kReplicated),
      replicas_(context, *node_.plane->peer_replicas(), GroupOf(context.plan().tree, context.rank)),
      updater_(std::move(updater)),
      has_gradient_(context.world_size()) {}

absl::Status HierarchicalExchange::Check(const ReplicaMemory& replica) const {
  return replicas_.Check(replica);
}

absl::Status HierarchicalExchange::Prepare(const StepRecord& record, const ReplicaMemory& replica,
                                           absl::Time deadline) {
  if (!reduces_) return absl::OkStatus();
  replicas_.BeginStep();
  absl::Status met = GatherPresence(record.step, replica, deadline);
  if (!met.ok()) return met;
  const auto contribute = [&](const Bucket& bucket,
                              Buffer average) -> absl::StatusOr<BucketPipeline::Contribution> {
    BucketPipeline::Contribution sum;
    if (!pipeline_->IsAsked(bucket.owner)) return sum;
    void* to = average.data();
    if (to == nullptr) {
      absl::StatusOr<void*> staging = pipeline_->TakeStaging(deadline);
      if (!staging.ok()) return staging.status();
      to = sum.staging = *staging;
    }
    SumNode(bucket, *record.rows, to);
    sum.data = to;
    return sum;
  };
  return pipeline_->Reduce(record, contribute, deadline);
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
  const auto update = [&](int own) { return updater_->Update(own, record, place, deadline); };
  return pipeline_->Apply(record, replica, update, deadline);
}

// Others of the node write to this rank's replica.
absl::Status HierarchicalExchange::Complete(const StepRecord& record, absl::Time deadline) {
  std::vector<char> all;
  return GatherInNode(TagOf(context_, record.step, StepPhase::kPublish, kIsComplete), {1}, &all,
                      deadline);
}

absl::Status HierarchicalExchange::SyncParameters(StepNumber step, const ReplicaMemory& replica,
                                                  absl::Time deadline) {
  absl::Status published = pipeline_->PublishFromFirst(step, replica, deadline);
  if (!published.ok()) return published;
  if (context_.rank == 0) replicas_.CopyAllToOthers();
  // No rank goes on before its replica has all values.
  std::vector<char> all;
  return GatherInNode(TagOf(context_, step, StepPhase::kControl, kIsSynchronised), {1}, &all,
                      deadline);
}

// What other nodes own is in this node's replicas once whoever stands for it has all of it.
absl::Status HierarchicalExchange::PublishParameters(StepNumber step, const ReplicaMemory& replica,
                                                     absl::Time deadline) {
  absl::Status published = pipeline_->PublishFromOwners(step, replica, deadline);
  if (published.ok() && publishes_) replicas_.CopyOwnToOthers();
  return published;
}

void HierarchicalExchange::Abandon(absl::Time deadline) { pipeline_->Abandon(deadline); }

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
