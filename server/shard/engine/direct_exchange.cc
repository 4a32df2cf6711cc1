#include "server/shard/engine/direct_exchange.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/errors.h"
#include "common/gradient_mode.h"
#include "server/shard/engine/replica_placement.h"
#include "server/shard/engine/step_input.h"

namespace optshard {

DirectExchange::DirectExchange(const StepContext& context, std::unique_ptr<BucketUpdater> updater)
    : context_(context),
      replicas_(context.plane->peer_replicas()->regions),
      updater_(std::move(updater)),
      gathered_(context.world_size()) {
  for (const std::vector<Rank>& group : context.plan().tree.node_groups) {
    group_sizes_.push_back(static_cast<int>(group.size()));
    tree_order_.insert(tree_order_.end(), group.begin(), group.end());
  }
  const bool publishes = context.plan().policy != PartitionPolicy::kReplicated;
  regions_.resize(context.layout().regions().size());
  for (size_t r = 0; r < regions_.size(); ++r) {
    Region& region = regions_[r];
    region.gradient_dtype = context.layout().regions()[r].gradient_dtype;
    for (const Rank rank : tree_order_) {
      region.gradients.push_back(replicas_[rank][r].gradients.data());
    }
    // Ranks may share one copy.
    std::vector<void*> known = {replicas_[context.rank][r].parameters.data()};
    for (Rank rank = 0; publishes && rank < context.world_size(); ++rank) {
      void* const copy = replicas_[rank][r].parameters.data();
      if (std::find(known.begin(), known.end(), copy) != known.end()) continue;
      known.push_back(copy);
      region.copies.push_back(copy);
    }
  }
}

absl::Status DirectExchange::Check(const ReplicaMemory& replica) const {
  return errors::WithContext(CheckPlacement(context_.space(), context_.layout(),
                                            replicas_[context_.rank], replica.tensors()),
                             "in the memory that the ranks of this host share");
}

absl::Status DirectExchange::Prepare(const StepRecord&, const ReplicaMemory&, absl::Time) {
  return absl::OkStatus();
}

absl::Status DirectExchange::RunTrainerUpdates(const StepRecord& record,
                                               const ReplicaMemory& replica) {
  return updater_->RunTrainerUpdates(
      record, [&](const ShardStore::OwnBucket&, const BucketSpan& span, SpanUpdate* update) {
        PlaceSpan(record, replica, span, update);
      });
}

absl::Status DirectExchange::Apply(const StepRecord& record, const ReplicaMemory& replica,
                                   absl::Time deadline) {
  incomplete_.clear();
  const int own_count = static_cast<int>(context_.store->own_buckets().size());
  const auto place = [&](const ShardStore::OwnBucket&, const BucketSpan& span, SpanUpdate* update) {
    PlaceSpan(record, replica, span, update);
  };
  for (int own = 0; own < own_count; ++own) {
    absl::Status updated = updater_->Update(own, record, place, deadline);
    if (!updated.ok()) return updated;
  }
  return absl::OkStatus();
}

absl::Status DirectExchange::Complete(const StepRecord& record, absl::Time deadline) {
  return Barrier(TagOf(context_, record.step, StepPhase::kPublish, 0), deadline);
}

absl::Status DirectExchange::SyncParameters(StepNumber step, const ReplicaMemory&,
                                            absl::Time deadline) {
  for (size_t r = 0; r < regions_.size(); ++r) {
    const void* const from = replicas_[0][r].parameters.data();
    void* const to = replicas_[context_.rank][r].parameters.data();
    if (from != to) std::memcpy(to, from, context_.layout().regions()[r].bytes());
  }
  // Rank 0 may change its values once all have them.
  return Barrier(TagOf(context_, step, StepPhase::kControl, 0), deadline);
}

absl::Status DirectExchange::PublishParameters(StepNumber, const ReplicaMemory& replica,
                                               absl::Time) {
  for (const ShardStore::OwnBucket& own : context_.store->own_buckets()) {
    for (const BucketSpan& span : own.bucket->spans) {
      const MemoryLayout::Place& where = context_.layout().place(span.parameter);
      const ConstBuffer from =
          replica.tensor(span.parameter).parameter.From(span.parameter_offset_elements);
      const int64_t first = where.offset_elements + span.parameter_offset_elements;
      for (void* const copy : regions_[where.region].copies) {
        std::memcpy(Buffer(copy, from.dtype()).From(first).data(), from.data(),
                    span.elements * SizeOf(from.dtype()));
      }
    }
  }
  return absl::OkStatus();
}

// A barrier's ticket needs no other end: it touches no memory of a caller.
void DirectExchange::Abandon(absl::Time) {}

void DirectExchange::PlaceSpan(const StepRecord& record, const ReplicaMemory& replica,
                               const BucketSpan& span, SpanUpdate* update) {
  const MemoryLayout::Place& where = context_.layout().place(span.parameter);
  const ReplicaTensor& tensor = replica.tensor(span.parameter);
  update->parameter = tensor.parameter.From(span.parameter_offset_elements);
  if (context_.gradient_mode() == GradientMode::kReduce) {
    update->gradient = ConstBuffer(nullptr, regions_[where.region].gradient_dtype);
    update->replicas.gradients = Gradients(record, span, where.region);
    update->replicas.group_sizes = group_sizes_;
  } else {
    update->gradient = tensor.gradient.From(span.parameter_offset_elements);
  }
  update->replicas.copies = regions_[where.region].copies;
  update->replicas.first = where.offset_elements + span.parameter_offset_elements;
}

absl::Status DirectExchange::Barrier(const StepTag& tag, absl::Time deadline) {
  const char here = 1;
  absl::StatusOr<std::unique_ptr<Ticket>> ticket =
      context_.plane->AllGather(tag, ExecutionContext(), &here, gathered_.data(), 1);
  if (!ticket.ok()) return ticket.status();
  return (*ticket)->Wait(deadline);
}

absl::Span<const void* const> DirectExchange::Gradients(const StepRecord& record,
                                                        const BucketSpan& span, int region) {
  const std::vector<const void*>& all = regions_[region].gradients;
  bool complete = true;
  found_.clear();
  for (size_t i = 0; i < all.size(); ++i) {
    const Rank rank = tree_order_[i];
    const bool has = record.has_gradient[rank][span.parameter] &&
                     record.rows->Has(rank, span.parameter, span.parameter_offset_elements);
    complete = complete && has;
    found_.push_back(has ? all[i] : nullptr);
  }
  return complete ? absl::MakeConstSpan(all)
                  : absl::MakeConstSpan(*incomplete_.insert(found_).first);
}

}  // namespace optshard
