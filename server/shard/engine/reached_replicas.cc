#include "server/shard/engine/reached_replicas.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/errors.h"
#include "server/shard/engine/replica_placement.h"

namespace optshard {

ReachedReplicas::ReachedReplicas(const StepContext& context, const PeerReplicas& replicas,
                                 std::vector<Rank> ranks)
    : context_(context), replicas_(replicas.regions), ranks_(std::move(ranks)) {
  regions_.resize(context.layout().regions().size());
  for (size_t r = 0; r < regions_.size(); ++r) {
    Region& region = regions_[r];
    region.gradient_dtype = context.layout().regions()[r].gradient_dtype;
    std::vector<void*> known = {replicas_[context.rank][r].parameters.data()};
    for (const Rank rank : ranks_) {
      region.gradients.push_back(replicas_[rank][r].gradients.data());
      void* const copy = replicas_[rank][r].parameters.data();
      if (std::find(known.begin(), known.end(), copy) != known.end()) continue;
      known.push_back(copy);
      region.copies.push_back(copy);
    }
  }
}

absl::Status ReachedReplicas::Check(const ReplicaMemory& replica) const {
  return errors::WithContext(CheckPlacement(context_.space(), context_.layout(),
                                            replicas_[context_.rank], replica.tensors()),
                             "in the memory that the ranks of this host share");
}

absl::Span<const void* const> ReachedReplicas::Gradients(
    const std::vector<std::vector<bool>>& has_gradient, const TouchedRows& rows,
    const BucketSpan& span) {
  const std::vector<const void*>& all = regions_[RegionOf(span)].gradients;
  bool complete = true;
  found_.clear();
  for (size_t i = 0; i < all.size(); ++i) {
    const Rank rank = ranks_[i];
    const bool has = has_gradient[rank][span.parameter] &&
                     rows.Has(rank, span.parameter, span.parameter_offset_elements);
    complete = complete && has;
    found_.push_back(has ? all[i] : nullptr);
  }
  return complete ? absl::MakeConstSpan(all)
                  : absl::MakeConstSpan(*incomplete_.insert(found_).first);
}

int64_t ReachedReplicas::First(const BucketSpan& span) const {
  return context_.layout().place(span.parameter).offset_elements + span.parameter_offset_elements;
}

void ReachedReplicas::CopyToOthers(const BucketSpan& span) const {
  const int region = RegionOf(span);
  const auto element = static_cast<int64_t>(SizeOf(context_.layout().regions()[region].dtype));
  const int64_t offset = First(span) * element;
  for (void* const copy : regions_[region].copies) {
    std::memcpy(static_cast<char*>(copy) + offset, static_cast<const char*>(Own(region)) + offset,
                span.elements * element);
  }
}

void ReachedReplicas::CopyOwnToOthers() const {
  for (const ShardStore::OwnBucket& own : context_.store->own_buckets()) {
    for (const BucketSpan& span : own.bucket->spans) CopyToOthers(span);
  }
}

void ReachedReplicas::CopyAllFrom(Rank from) const {
  for (size_t r = 0; r < regions_.size(); ++r) {
    const void* const values = replicas_[from][r].parameters.data();
    void* const to = replicas_[context_.rank][r].parameters.data();
    if (values != to) std::memcpy(to, values, context_.layout().regions()[r].bytes());
  }
}

void ReachedReplicas::CopyAllToOthers() const {
  for (size_t r = 0; r < regions_.size(); ++r) {
    for (void* const copy : regions_[r].copies) {
      std::memcpy(copy, Own(static_cast<int>(r)), context_.layout().regions()[r].bytes());
    }
  }
}

}  // namespace optshard
