// Runs the steps of one rank: prepare, commit, apply and publish (docs/life_of_a_step.md).
#ifndef OPTSHARD_SERVER_SHARD_STEP_ENGINE_H_
#define OPTSHARD_SERVER_SHARD_STEP_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/bucket.h"
#include "common/clock.h"
#include "common/dataplane/data_plane.h"
#include "common/ids.h"
#include "common/membership/membership.h"
#include "common/parameter_space.h"
#include "common/partition.h"
#include "server/shard/commit_vote.h"
#include "server/shard/operation_window.h"
#include "server/shard/replica_memory.h"
#include "server/shard/shard_store.h"
#include "server/shard/step.h"
#include "server/shard/step_record.h"
#include "server/shard/timeline_ring.h"
#include "server/update/update_rule.h"
#include "server/update/update_threads.h"

namespace optshard {

// Bound to one thread. After a result that is not OK no other call may follow.
class StepEngine {
 public:
  struct Options {
    Rank rank = 0;
    int world_size = 1;
    Generation generation = 0;
    Incarnation incarnation = 0;
    const ParameterSpace* space = nullptr;
    int region_count = 0;  // of the MemoryLayout
    const std::vector<Bucket>* buckets = nullptr;
    PartitionPolicy policy = PartitionPolicy::kGreedy;
    GradientMode gradient_mode = GradientMode::kReduce;
    const UpdateRule* rule = nullptr;
    std::vector<Hyperparameters> hyperparameters;  // validated: they decided the slots
    DriverKind driver = DriverKind::kSimd;
    int threads = 1;
    DataPlane* plane = nullptr;  // null where world_size is 1
    ShardStore* store = nullptr;
    TimelineRing* timeline = nullptr;
    const Clock* clock = nullptr;
    // How many plane operations may be under way: enough that a rank which is ahead goes on
    // updating and publishing. How many of them through staging memory, of one bucket each.
    int window = 64;
    int staging_buffers = 8;
  };  // whatever is pointed to outlives the engine

  struct Result {
    absl::Status status;
    // Where not OK: how far the step can have come. kIdle otherwise.
    StepOutcome outcome = StepOutcome::kIdle;
    // The status is the data plane's: it has been aborted, some rank may be lost. Otherwise all
    // ranks gave the step up alike.
    bool plane_failed = false;
    StepInfo info;
  };

  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<StepEngine>> Create(Options options);

  Result Step(const StepInput& input);

  // Rank 0's parameter values go to all.
  Result SyncParameters(absl::Span<const ReplicaTensor> replica,
                        absl::Span<const ReplicaRegion> regions, absl::Duration timeout);

  StepNumber finished() const { return finished_; }
  const StepRecord& record() const { return record_; }  // of the last step

 private:
  explicit StepEngine(Options options);

  absl::Status CheckReplica(absl::Span<const ReplicaTensor> replica,
                            absl::Span<const ReplicaRegion> regions) const;
  absl::Status CheckHyperparameters(absl::Span<const Hyperparameters> given);

  // The phases. An error is the plane's.
  absl::Status ReduceGradients(const ReplicaMemory& replica, absl::Time deadline);
  absl::Status GatherVotes(const ReplicaMemory& replica, const absl::Status& prepared,
                           absl::Time deadline, std::vector<CommitVote>* votes);
  absl::Status ApplyAndPublish(const ReplicaMemory& replica, absl::Time deadline);

  absl::Status AllGather(const std::vector<char>& contribution, std::vector<char>* gathered,
                         absl::Time deadline);
  absl::Status NameDifferentHyperparameters(const absl::Status& differ,
                                            absl::Span<const CommitVote> votes,
                                            absl::Time deadline);
  absl::Status Publish(const Bucket& bucket, Rank from, StepPhase phase,
                       const ReplicaMemory& replica, absl::Time deadline);
  void PrepareCoefficients();
  void Update(int own, const ReplicaMemory& replica);
  bool AnyUpdated(const Bucket& bucket) const;
  StepTag Tag(StepPhase phase, int bucket) const;
  Result Failed(absl::Status status, StepOutcome outcome, bool plane_failed);

  const Options options_;
  const bool reduces_;    // gradients go to their owners
  const bool publishes_;  // parameters come from their owners
  const std::vector<ReplicaTensor> no_replica_;
  UpdateThreads threads_;
  std::unique_ptr<OperationWindow> window_;
  std::vector<bool> owned_;             // by parameter: whether some of it is
  std::vector<Hyperparameters> given_;  // those that record_.hyperparameters were made from
  std::string hyperparameter_text_;
  StepRecord record_;
  StepNumber finished_ = 0;
  std::vector<Incarnation> incarnations_;  // by rank, of the votes so far; 0: none yet
  std::vector<SpanTask> tasks_;            // of the bucket that is being updated
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_STEP_ENGINE_H_
