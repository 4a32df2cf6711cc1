// A shard server in this process, its coordinator, and trainers that attach to it: threads of this
// process, or children.
#ifndef OPTSHARD_TESTS_SERVER_NODE_NODE_RIG_H_
#define OPTSHARD_TESTS_SERVER_NODE_NODE_RIG_H_

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
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
#include "server/node/attach_server.h"
#include "server/node/descriptor_keeper.h"
#include "server/node/node_owners.h"
#include "server/shard/engine/step_input.h"
#include "tests/server/shard/engine/step_oracle.h"
#include "tests/testing/local_coordinator.h"
#include "tests/testing/state_share.h"

namespace optshard::testing {

// No two are the same, also of tests that run at the same time.
LocalAddress NewNodeAddress();

// The rank's values and gradients: functions of their names, so that every process knows them.
StateOptions StateOfNodes();
// What is optimized once a group was added in so many calls.
OptimizerSpec SpecOfNodes(int world_size, int added = 0);
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

// Looks every other millisecond until it holds; false where it does not do so for half a minute.
bool Await(const std::function<bool()>& condition);
// Until the thread, of this process, sleeps.
bool AwaitAsleep(pid_t thread);

// What parent and children tell each other, in memory that they share.
struct Board {
  std::atomic<int> stage{0};
  std::atomic<int> ready{0};

  // Of the process that makes it, and of those that it forks then.
  static std::shared_ptr<Board> Make();
  static bool Await(const std::atomic<int>& value, int at_least);
};

// Holds what a shard server gives it, for the next one.
class FakeKeeper : public DescriptorKeeper {
 public:
  absl::Status Keep(absl::string_view name, absl::Span<const int> descriptors) override;
  absl::Status Forget(absl::string_view name) override;

  pid_t pid() const override { return getpid(); }

  std::vector<KeptUnit> Units() const;

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, std::vector<UniqueFd>> units_ ABSL_GUARDED_BY(mutex_);
};

// Another one, until it is cut off: then nothing goes out any more.
class SeverableCoordinator;

class NodeRig {
 public:
  struct Options {
    int world_size = 2;
    LocalAddress address = NewNodeAddress();
    NodeOwners::Options owners;  // job, ranks and, unless given, coordinator are filled in
  };
  explicit NodeRig(Options options, std::vector<KeptUnit> units = {});
  explicit NodeRig(int world_size, const LocalAddress& address = NewNodeAddress());
  ~NodeRig();

  const LocalAddress& address() const { return options_.address; }
  NodeOwners& owners() { return *owners_; }
  AttachServer& server() { return *server_; }
  AttachedOwner::Options TrainerOptions(Rank rank) const {
    return NodeTrainer::DefaultOptions(options_.address, rank, options_.world_size);
  }
  // Until the rank waits for others: it has begun a step, or the refusal of one, and they have not.
  bool AwaitWaiting(Rank rank) const;
  // Until the rank has joined the job, whose other ranks may be missing.
  bool AwaitJoined(Rank rank);

  // As SIGKILL would look to the coordinator, and to trainers but for a goodbye. The rig is of no
  // use any more.
  void Die();
  // As SIGTERM does.
  bool Drain(absl::Duration grace);

  void OnEveryRank(const std::function<void(Rank)>& work);
  // Trainers of all ranks.
  std::vector<std::unique_ptr<NodeTrainer>> StartAll();

 private:
  Options options_;
  std::unique_ptr<LocalCoordinator> coordinator_;
  std::unique_ptr<SeverableCoordinator> severable_;
  std::unique_ptr<NodeOwners> owners_;
  std::unique_ptr<AttachServer> server_;
};

}  // namespace optshard::testing

#endif  // OPTSHARD_TESTS_SERVER_NODE_NODE_RIG_H_
