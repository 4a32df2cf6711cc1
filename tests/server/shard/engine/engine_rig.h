// A group of ranks, one thread each, that step together over the fake data plane.
#ifndef OPTSHARD_TESTS_SERVER_SHARD_ENGINE_ENGINE_RIG_H_
#define OPTSHARD_TESTS_SERVER_SHARD_ENGINE_ENGINE_RIG_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bucket.h"
#include "common/generation_shape.h"
#include "common/gradient_mode.h"
#include "common/group_rule.h"
#include "common/parameter_space.h"
#include "common/plan.h"
#include "server/shard/engine/step_engine.h"
#include "server/shard/inspection/timeline_ring.h"
#include "server/shard/owner_generation.h"
#include "server/shard/state/shard_memory.h"
#include "server/shard/state/shard_store.h"
#include "server/update/executor.h"
#include "server/update/group_update.h"
#include "server/update/update_rule.h"
#include "tests/common/dataplane/nccl_group.h"
#include "tests/server/shard/engine/fake_device_executor.h"
#include "tests/server/shard/engine/step_oracle.h"
#include "tests/server/shard/engine/test_replica.h"
#include "tests/testing/fake_plane.h"

namespace optshard::testing {

// Two groups with large, small, scalar and empty parameters.
ParameterSpace MixedSpace();
// The same parameters with every dtype, by turns, from number `first` on.
ParameterSpace WithEveryDType(const ParameterSpace& space, int first = 0);
// That of MixedSpace.
ParameterSpace MixedDTypeSpace(int first = 0);

// A group for each of the rules, with all parameters of MixedSpace.
ParameterSpace MixedGroups(const std::vector<GroupRule>& rules);
// One group for each rule that goes with the policy and takes dense gradients.
std::vector<GroupRule> RulesFor(PartitionPolicy policy);

class EngineRig {
 public:
  struct Options {
    int world_size = 2;
    FakeHub::Mode mode = FakeHub::Mode::kImmediate;
    GradientMode gradient_mode = GradientMode::kReduce;
    StateOptions state;
    PartitionPolicy policy = PartitionPolicy::kGreedy;
    std::vector<Placement> placements = {Placement::kFlatRegions};  // by rank, in turn
    ParameterSpace space = MixedSpace();
    std::vector<GroupRule> rules = {{"adam"}};  // by group, in turn
    std::vector<std::string> nodes;             // empty: all ranks on one; for kNodes dealt to two
    BucketOptions buckets = {2048, 512};        // many buckets, contiguous and packed ones
    DriverKind driver = DriverKind::kSimd;
    int threads = 1;
    std::function<ExecutorFactory(Rank)> executor_of;  // null: the default one
    int window = 4;
    int staging_buffers = 2;
    uint64_t seed = 1;
    int gradient_exponent = 0;  // gradients are multiplied by 2 to the power of it
    // By rank: bits of MXCSR that its thread sets before it calls, such as _MM_FLUSH_ZERO_ON.
    std::vector<unsigned> floating_point_modes;
    absl::Duration timeout = absl::Seconds(20);
    // Each rank's replica and state are on a fake device of its own, and the planes are over a fake
    // NCCL. What the device does it does when somebody looks: Synchronize before you compare.
    bool on_devices = false;
    bool state_on_host = false;                 // and the updates, of replicas on devices
    std::function<MayUpdate(Rank)> may_update;  // null: any update may run
    // A real device instead, for one rank alone, with what runs updates there (executor_of).
    std::shared_ptr<DeviceApi> device;
  };

  struct RankState {
    std::unique_ptr<TestReplica> replica;
    std::shared_ptr<DataPlane> plane;
    std::shared_ptr<DeviceApi> device;
    std::shared_ptr<void> stream;     // the trainer's, on the device
    std::vector<ShardMemory> memory;  // by admission
    std::unique_ptr<TimelineRing> timeline;
    std::unique_ptr<OwnerGeneration> generation;
    StepEngine* engine = nullptr;  // the generation's
    ShardStore* store = nullptr;   // likewise
    std::vector<Hyperparameters> hyperparameters;
  };

  explicit EngineRig(Options options);
  ~EngineRig();

  // Whether the rank has a gradient of the parameter in the step.
  using Presence = std::function<bool(StepNumber step, Rank rank, int parameter)>;

  // Gradients of a step on every rank, where `presence` says so; the oracle's step, too.
  void GiveGradients(const Presence& presence);
  void GiveAllGradients();

  using RowPresence = std::function<bool(Rank rank, int64_t row)>;

  // Makes the gradient that ranks were given of the parameter a sparse one of these rows. The
  // oracle has zeros at the others.
  void MakeSparse(int parameter, const RowPresence& has);

  // Steps every rank, each on a thread of its own, all with the gradients they have.
  std::vector<StepEngine::Result> Step();
  StepEngine::Result StepOf(Rank rank);  // on the calling thread
  // On every rank.
  std::vector<StepEngine::Result> SyncParameters();
  std::vector<StepEngine::Result> Synchronize();
  StepOracle& oracle() { return *oracle_; }
  // The next generation, in which the options' space has one admission more: every rank's is built
  // beside the running one and takes its place. The added parameters have values at rank 0 alone.
  void Grow(const ParameterSpace& space);
  // Builds the rank's part of it, and gives it up again.
  absl::Status BuildInVain(Rank rank, const ParameterSpace& space);
  // Another generation of the rank, over what the one before has left.
  void RemakeEngine(Rank rank);

  // The same as Step for any work.
  void OnEveryRank(const std::function<void(Rank)>& work);

  // The oracle takes the step whose gradients were given last.
  void StepOracleAlong();

  // Parameters on all ranks and slots and counts at their owners equal the oracle's to the bit: ""
  // or what differs, with the seed.
  std::string DifferenceToOracle() const;

  RankState& rank(Rank rank) { return ranks_[rank]; }
  FakeHub& hub() { return *hub_; }
  NcclGroup& devices() { return *devices_; }  // where they are on devices
  const Options& options() const { return options_; }
  const ParameterSpace& space() const { return options_.space; }
  const std::vector<Bucket>& buckets() const { return common_.shape->buckets(); }
  const Plan& plan() const { return common_.shape->plan(); }
  const std::shared_ptr<const GenerationShape>& shape() const { return common_.shape; }

 private:
  // What all ranks have alike in a generation.
  struct Common {
    GroupUpdates groups;
    std::shared_ptr<const GenerationShape> shape;
  };
  Common MakeCommon(Generation generation, const ParameterSpace& space) const;
  std::unique_ptr<FakeHub> MakeHub() const;
  // Whether the ranks reach each other's replicas, those of all or those of their nodes.
  bool reachable() const;
  bool on_nodes() const { return options_.placements[0] == Placement::kNodes; }
  void MakeReplicas();
  void MakeDevices();
  void MakePlanes();
  ShardMemory MakeMemory(Rank rank, const Common& common) const;
  OwnerGeneration::Options OptionsOf(Rank rank, const Common& common) const;
  void Take(Rank rank, absl::StatusOr<std::unique_ptr<OwnerGeneration>> built);
  // Values that depend on the parameter's number alone.
  Values FirstValues(int parameter) const;

  std::string SlotDifference(Rank rank, const Slice& slice) const;

  Options options_;
  Common common_;
  std::unique_ptr<FakeHub> hub_;
  std::unique_ptr<NcclGroup> devices_;
  std::vector<RankState> ranks_;
  std::unique_ptr<StepOracle> oracle_;
  StepNumber given_ = 0;
  std::vector<std::vector<Values>> gradients_;
  std::vector<std::vector<bool>> has_;
  std::vector<std::vector<bool>> touched_;  // by parameter, by element; empty: all
};

// Every rank has stepped.
void ExpectAllOk(const std::vector<StepEngine::Result>& results);

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_SHARD_ENGINE_ENGINE_RIG_H_
