// What is behind ShardOwner.
#ifndef OPTSHARD_SERVER_SHARD_SHARD_OWNER_IMPL_H_
#define OPTSHARD_SERVER_SHARD_SHARD_OWNER_IMPL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/dataplane/data_plane.h"
#include "common/generation_shape.h"
#include "common/ids.h"
#include "common/log.h"
#include "common/membership/coordinator_client.h"
#include "common/membership/membership.h"
#include "common/optimizer_spec.h"
#include "common/plan.h"
#include "server/shard/engine/step_engine.h"
#include "server/shard/inspection/live_shard_view.h"
#include "server/shard/inspection/step_board.h"
#include "server/shard/inspection/timeline_ring.h"
#include "server/shard/owner_generation.h"
#include "server/shard/plane_guard.h"
#include "server/shard/shard_owner.h"
#include "server/shard/snapshot/parameter_memory.h"
#include "server/shard/state/replacing.h"
#include "server/update/group_update.h"

namespace optshard {

// As ShardOwner. shard_owner_growth.cc has what adds param groups.
class ShardOwner::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)) {}

  ~Impl() {
    // The plane uses the session's rendezvous: it goes first, and no callback finds it then.
    guard_->Detach();
    generation_.reset();
    plane_.reset();
  }

  absl::Status Start();
  absl::StatusOr<StepInfo> Step(const StepInput& input);
  absl::Status RefuseNextStep(absl::string_view how_known);
  // A call of all ranks between steps.
  template <typename Call>
  absl::Status BetweenSteps(const Call& call) {
    absl::Status usable = CheckNothingLost();
    if (!usable.ok()) return usable;
    const StepEngine::Result result = call(generation_->engine());
    return result.status.ok() || result.refused ? result.status : Break(result);
  }
  absl::Status AddGroups(const OptimizerSpec& spec,
                         const std::vector<std::shared_ptr<TrainerUpdate>>& trainer_updates,
                         const absl::Status& prepared, absl::Duration timeout);
  absl::Status FinishLoading(const LoadInput& load);
  absl::Status ReplaceState(absl::Duration timeout);
  absl::Status Synchronize(absl::Duration timeout);
  absl::Status Stop(absl::Duration timeout);

  void AbortPlane(const absl::Status& reason) { guard_->Abort(reason); }
  absl::Status failure() const { return board_->failure(); }
  absl::Status lost() const { return guard_->reason(); }
  StepProgress progress() const { return generation_->engine().progress(); }
  bool lacks_values() const {
    return generation_->engine().values() == ParameterValues::kAddedAreMissing;
  }
  absl::StatusOr<ShardState*> state();
  void KeepParameters(std::shared_ptr<const ParameterMemory> memory) {
    parameters_->Set(std::move(memory));
  }
  void CopyParameters() { generation_->store()->snapshots().BeginParameterWrites(); }
  const Plan& plan() const { return shape_->plan(); }
  // Null where the plane reaches no peer's memory.
  const PeerReplicas* peer_replicas() const {
    return plane_ == nullptr ? nullptr : ReplicasReachedBy(*plane_);
  }
  absl::Span<const ReplicaRegion> shared_replica() const {
    if (peer_replicas() == nullptr) return {};
    return peer_replicas()->regions[options_.rank];
  }
  std::shared_ptr<const void> shared_replica_memory() const {
    if (peer_replicas() == nullptr) return nullptr;
    return std::make_shared<const decltype(PeerReplicas::segments)>(peer_replicas()->segments);
  }
  const ShardView& view() const { return *view_; }

 private:
  absl::Status JoinJob(absl::Time deadline);
  void Leave();
  absl::StatusOr<std::shared_ptr<DataPlane>> ConnectPlane(const GenerationShape& shape,
                                                          absl::Time deadline);
  absl::Status Build();
  std::vector<Hyperparameters> LastHyperparameters() const;
  absl::Status CheckGroups(const OptimizerSpec& spec,
                           const std::vector<std::shared_ptr<TrainerUpdate>>& trainer_updates,
                           GroupUpdates* groups) const;
  absl::Status BreakOf(const absl::Status& cause);
  absl::Status TakeRefusal(const GrowthAnswer& answer, absl::Duration timeout);
  absl::StatusOr<std::unique_ptr<OwnerGeneration>> BuildNext(const OptimizerSpec& spec,
                                                             GroupUpdates groups, Generation number,
                                                             absl::Time deadline);
  void GoOnWith(std::unique_ptr<OwnerGeneration> next);
  absl::Status CheckUsable() const;
  absl::Status CheckNothingLost();
  absl::Status Settle(absl::Duration timeout);
  void PublishProgress(StepOutcome outcome);
  absl::Status AttributeFailure(StepOutcome outcome, const absl::Status& observed);
  absl::Status Break(const StepEngine::Result& result);
  LogContext MakeLogContext() const;

  Options options_;
  GroupUpdates groups_;
  // Outlives whatever the session's thread may call.
  const std::shared_ptr<PlaneGuard> guard_ = std::make_shared<PlaneGuard>();
  const std::shared_ptr<ParameterPlace> parameters_ = std::make_shared<ParameterPlace>();
  std::unique_ptr<MemberSession> session_;
  std::shared_ptr<const GenerationShape> shape_;
  std::unique_ptr<StepBoard> board_;
  std::unique_ptr<TimelineRing> timeline_;
  std::unique_ptr<LiveShardView> view_;
  std::shared_ptr<DataPlane> plane_;
  std::unique_ptr<OwnerGeneration> generation_;
  ParameterValues values_ = ParameterValues::kOfEachRank;  // at the start ...
  StepProgress resumed_;                                   // ... which is after this ...
  Replacing replacing_ = Replacing::kNothing;  // ... and, where it is kTorn, has this in part
  uint64_t growth_calls_ = 0;
  absl::Status left_alone_;  // not OK: who left while this rank refused a step, and its plane ended
  bool stopped_ = false;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_SHARD_SHARD_OWNER_IMPL_H_
