// What a rank's trainer asks for: taken from its doorbell, and as the shard owner takes it.
#ifndef OPTSHARD_SERVER_NODE_TRAINER_REQUEST_H_
#define OPTSHARD_SERVER_NODE_TRAINER_REQUEST_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/attach/doorbell.h"
#include "common/dataplane/peer_replicas.h"
#include "common/hyperparameters.h"
#include "common/ids.h"
#include "common/memory_layout.h"
#include "common/optimizer_spec.h"
#include "server/shard/engine/step_input.h"
#include "server/shard/snapshot/parameter_memory.h"
#include "server/update/group_update.h"

namespace optshard {

// The present request of whichever trainer has the rank. Bound to the rank's thread.
class TrainerRequest {
 public:
  explicit TrainerRequest(const OptimizerSpec& spec) : spec_(spec) {}  // the spec outlives it

  // Call both before anything is asked of an owner: how it steps the groups, and where it looks for
  // the rank's tensors.
  void SetGroups(std::vector<GroupUpdate> groups) { groups_ = std::move(groups); }
  void Place(const MemoryLayout& layout, std::vector<ReplicaRegion> regions);

  // Takes the request that the doorbell has, of the rank's trainer of this number. Errors as
  // Doorbell::Take.
  absl::Status Take(Incarnation trainer, Doorbell& doorbell);
  const DoorbellRequest& asked() const { return asked_; }

  // Those of a step, before its input is asked for, or of a loaded one. Validated here already: for
  // the other ranks it is then as if there were no trainer, and they can wait until it has
  // corrected its own.
  absl::Status UseHyperparameters();
  absl::Span<const Hyperparameters> hyperparameters() const { return hyperparameters_; }
  // Of a step. Valid until the next request is taken.
  StepInput Input();

  // Where the values of the rank's parameters lie; `keeps` keeps that, and writes are not known.
  std::shared_ptr<ParameterMemory> ParametersKeptBy(std::shared_ptr<const void> keeps) const;

  // All of the rank's tensors, with all gradients, and where they lie.
  absl::Span<const ReplicaTensor> tensors() const { return all_tensors_; }
  absl::Span<const ReplicaRegion> regions() const { return regions_; }

 private:
  const OptimizerSpec& spec_;
  std::vector<GroupUpdate> groups_;
  std::vector<ReplicaRegion> regions_;
  std::vector<ReplicaTensor> all_tensors_;
  std::vector<ReplicaTensor> tensors_;  // with the gradients of the present step
  DoorbellRequest asked_;
  Incarnation trainer_ = 0;              // whose it is
  uint64_t hyperparameter_version_ = 0;  // those decoded last; 0: none of this trainer's
  std::vector<Hyperparameters> hyperparameters_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_TRAINER_REQUEST_H_
