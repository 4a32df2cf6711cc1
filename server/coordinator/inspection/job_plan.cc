#include "server/coordinator/inspection/job_plan.h"

#include <algorithm>
#include <utility>

#include "common/dtype.h"

namespace optshard {

std::shared_ptr<const JobPlan> MakeJobPlan(OptimizerPlan plan) {
  auto made = std::make_shared<JobPlan>();
  made->plan = std::move(plan);
  const Partition& partition = made->plan.ready->plan.partition;
  const bool replicated = made->is_replicated();
  made->shares.resize(partition.slices.size());
  made->owners.resize(made->space().parameter_count());
  for (size_t rank = 0; rank < partition.slices.size(); ++rank) {
    RankShare& share = made->shares[rank];
    int32_t last = -1;
    for (const Slice& slice : partition.slices[rank]) {
      if (slice.parameter != last) ++share.parameters;
      last = slice.parameter;
      share.elements += slice.elements;
      const auto size = static_cast<int64_t>(SizeOf(made->space().parameter(last).dtype));
      share.bytes += slice.elements * size;
      if (replicated && rank > 0) continue;
      made->owners[last].push_back(
          {static_cast<Rank>(rank), slice.offset_elements, slice.elements});
    }
  }
  for (std::vector<JobPlan::OwnerSlice>& owners : made->owners) {
    std::sort(owners.begin(), owners.end(),
              [](const auto& a, const auto& b) { return a.offset_elements < b.offset_elements; });
  }
  return made;
}

absl::StatusOr<std::shared_ptr<const JobPlan>> JobPlans::Get(const std::string& optimizer,
                                                             Generation generation) {
  {
    absl::MutexLock lock(&mutex_);
    const auto known = plans_.find(optimizer);
    if (known != plans_.end() && known->second->generation() == generation) return known->second;
  }
  absl::StatusOr<OptimizerPlan> plan = coordinator_.GetPlan(optimizer);
  if (!plan.ok()) return plan.status();
  std::shared_ptr<const JobPlan> made = MakeJobPlan(*std::move(plan));
  absl::MutexLock lock(&mutex_);
  plans_[optimizer] = made;
  return made;
}

}  // namespace optshard
