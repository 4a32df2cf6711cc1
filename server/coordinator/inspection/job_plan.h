// What inspection needs to know of an optimizer's plan, made once a generation.
#ifndef OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_PLAN_H_
#define OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_PLAN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/ids.h"
#include "common/membership/membership.h"
#include "server/coordinator/coordinator.h"

namespace optshard {

struct RankShare {
  int parameters = 0;
  int64_t elements = 0;
  int64_t bytes = 0;  // of the parameters
};

// Immutable.
struct JobPlan {
  struct OwnerSlice {
    Rank rank = 0;
    int64_t offset_elements = 0;
    int64_t elements = 0;
  };

  OptimizerPlan plan;
  std::vector<RankShare> shares;  // by rank
  // By parameter, by offset. Where every rank owns everything: rank 0 alone.
  std::vector<std::vector<OwnerSlice>> owners;

  Generation generation() const { return plan.ready->plan.generation; }
  const ParameterSpace& space() const { return plan.spec.space; }
  bool is_replicated() const { return plan.spec.policy == PartitionPolicy::kReplicated; }
};

std::shared_ptr<const JobPlan> MakeJobPlan(OptimizerPlan plan);

// The present plan of each optimizer. Thread-safe.
class JobPlans {
 public:
  // `coordinator` outlives it.
  explicit JobPlans(const Coordinator* coordinator) : coordinator_(*coordinator) {}

  // The optimizer's plan, which may be of a later generation than is asked for. Errors as
  // Coordinator::GetPlan.
  absl::StatusOr<std::shared_ptr<const JobPlan>> Get(const std::string& optimizer,
                                                     Generation generation);

 private:
  const Coordinator& coordinator_;
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<const JobPlan>> plans_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_COORDINATOR_INSPECTION_JOB_PLAN_H_
