// Shard owners of all ranks in one process: a real coordinator's domain, the fake data plane, one
// thread a rank for whatever they do together.
#ifndef OPTSHARD_TESTS_SERVER_SHARD_OWNER_RIG_H_
#define OPTSHARD_TESTS_SERVER_SHARD_OWNER_RIG_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/step_info.h"
#include "server/shard/engine/step_input.h"
#include "server/shard/shard_owner.h"
#include "server/shard/snapshot/parameter_memory.h"
#include "tests/common/dataplane/nccl_group.h"
#include "tests/server/shard/engine/test_replica.h"
#include "tests/testing/fake_plane.h"
#include "tests/testing/local_coordinator.h"

namespace optshard::testing {

class OwnerRig {
 public:
  struct Options {
    int world_size = 2;
    FakeHub::Mode mode = FakeHub::Mode::kImmediate;
    absl::Duration lease = absl::Seconds(1);
    ShardOwner::Options owner;  // of every rank; rank, world size and the like are filled in
    absl::Duration timeout = absl::Seconds(20);
    bool reachable = false;  // the plane reaches the replicas of all ranks
    // Replicas and state are on fake devices, one a rank, and the planes are over a fake NCCL. What
    // a device does it does when somebody looks.
    bool on_devices = false;
    bool state_on_host = false;  // of replicas on devices
  };
  // Two groups of adam, mixed sizes, small buckets.
  static Options MixedOptions(int world_size);

  explicit OwnerRig(Options options);
  ~OwnerRig();

  // One rank's options may be changed before Start.
  ShardOwner::Options& owner_options(Rank rank) { return owner_options_[rank]; }

  // From now on the rank dies as soon as its n-th data plane operation begins (counted from 0 over
  // its life): it is gone for the data plane and for the coordinator at once.
  void KillAt(Rank rank, int64_t operation);
  void Kill(Rank rank);

  // Waits until the rank's plane has been aborted; false if it never is.
  bool AwaitAborted(Rank rank);

  void OnEveryRank(const std::function<void(Rank)>& work);
  std::vector<absl::Status> Start();
  void GiveGradients(uint64_t seed);
  // As a trainer tells where its parameters are, for snapshots, and of its writes to them.
  void TellParameters(const std::shared_ptr<const TrainerWrites>& writes = nullptr);
  std::vector<absl::StatusOr<StepInfo>> Step();
  std::vector<absl::Status> Stop();

  ShardOwner& owner(Rank rank) { return *owners_[rank]; }
  TestReplica& replica(Rank rank) { return *replicas_[rank]; }
  FakeHub& hub() { return on_devices_ == nullptr ? *hub_ : on_devices_->hosts(); }
  NcclGroup& on_devices() { return *on_devices_; }
  LocalCoordinator& coordinator() { return *coordinator_; }
  const ParameterSpace& space() const { return options_.owner.spec.space; }
  // Valid until the next one of the rank.
  StepInput InputOf(Rank rank);

 private:
  absl::StatusOr<std::unique_ptr<DataPlane>> MakePlane(const PlaneRequest& request);

  Options options_;
  absl::Mutex mutex_;
  std::set<Rank> aborted_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<LocalCoordinator> coordinator_;
  std::unique_ptr<FakeHub> hub_;
  std::unique_ptr<NcclGroup> on_devices_;
  std::vector<std::shared_ptr<void>> streams_;  // by rank, the trainers'; null: of hosts
  std::vector<ShardOwner::Options> owner_options_;
  std::vector<std::vector<Hyperparameters>> given_;  // by rank, in the last step
  std::vector<std::unique_ptr<TestReplica>> replicas_;
  std::vector<std::unique_ptr<ShardOwner>> owners_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_SHARD_OWNER_RIG_H_
