// A trainer that attaches to a shard server, and the values that it must have.
#ifndef OPTSHARD_TESTS_SERVER_NODE_NODE_TRAINER_H_
#define OPTSHARD_TESTS_SERVER_NODE_NODE_TRAINER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/owner/attached_owner.h"
#include "common/memory_layout.h"
#include "common/optimizer_spec.h"
#include "common/step_info.h"
#include "server/shard/engine/step_input.h"
#include "tests/server/shard/engine/test_replica.h"
#include "tests/testing/state_share.h"

namespace optshard::testing {

// The rank's values and gradients: functions of their names, so that every process knows them.
StateOptions StateOfNodes();
// What is optimized once a group was added in so many calls.
OptimizerSpec SpecOfNodes(int world_size, int added = 0);
// The same parameters, on a device of this kind.
void MoveTo(const std::string& kind, OptimizerSpec* spec);
Values FirstParameter(Rank rank, int parameter);
Values GradientOf(Rank rank, StepNumber step, int parameter);
// Every third or so is missing.
bool HasGradient(Rank rank, StepNumber step, int parameter);

// One trainer, bound to a thread.
class NodeTrainer {
 public:
  // Of the rig's job: mixed sizes, adam, small buckets.
  static AttachedOwner::Options DefaultOptions(const LocalAddress& socket, Rank rank,
                                               int world_size);

  // Attaches, and gives the first values where it does not resume.
  static absl::StatusOr<std::unique_ptr<NodeTrainer>> Start(const AttachedOwner::Options& options);

  // The next step, with its gradients.
  absl::StatusOr<StepInfo> Step(absl::Duration timeout = absl::Seconds(20));
  // The next call, without any gradient.
  absl::StatusOr<StepInfo> Skip();
  // Until this one is finished; comes again as long as trainers are missing.
  absl::Status StepUntil(StepNumber last);

  // Adds the next group, and gives it values where it has none.
  absl::Status AddGroup(absl::Duration timeout = absl::Seconds(20));
  // As where it ends then.
  absl::Status AddGroupWithoutValues(absl::Duration timeout = absl::Seconds(20));
  absl::Status SyncParameters();
  absl::Status GiveAddedValues();

  absl::Status VerifyReplicas();
  // Of the parameter's first element, in this trainer's replica.
  void FlipBit(int parameter);

  Values Parameter(int parameter) const;
  // What its rank keeps, and the end of a load with the trainer's memory.
  StateShare ReadShare();
  absl::Status FinishLoading(const OwnerLink::LoadedStep& loaded);
  AttachedOwner& link() { return *link_; }
  StepNumber finished() const { return finished_; }
  const ParameterSpace& space() const { return spec_.space; }
  int added() const { return space().admission_count() - 1; }
  void SetLearningRate(double rate) { rate_ = rate; }
  std::vector<Hyperparameters> hyperparameters() const;  // by group, as its steps have them

 private:
  absl::StatusOr<StepInfo> StepWithGradients(absl::Duration timeout);
  explicit NodeTrainer(const AttachedOwner::Options& options)
      : options_(options), spec_(options.spec) {}
  absl::Status Begin(int first);
  OptimizerSpec GrownSpec() const;

  const AttachedOwner::Options options_;
  OptimizerSpec spec_;
  MemoryLayout layout_{options_.spec.space};
  std::unique_ptr<AttachedOwner> link_;
  std::vector<ReplicaTensor> tensors_;
  StepNumber finished_ = 0;
  double rate_ = 0.01;
};

// What all replicas must hold after `steps` steps, by parameter. `added`: after which steps a group
// was added.
std::vector<Values> ExpectedParameters(int world_size, StepNumber steps,
                                       const std::vector<StepNumber>& added = {});

// "" where the trainer has the parameters that it must have after its last step, to the bit.
std::string Differences(const NodeTrainer& trainer, int world_size,
                        const std::vector<StepNumber>& added = {});

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_NODE_NODE_TRAINER_H_
