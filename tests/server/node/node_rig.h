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
#include "absl/time/time.h"
#include "client/owner/attached_owner.h"
#include "server/node/attach_server.h"
#include "server/node/descriptor_keeper.h"
#include "server/node/node_owners.h"
#include "tests/server/node/node_trainer.h"
#include "tests/testing/local_coordinator.h"

namespace optshard::testing {

// No two are the same, also of tests that run at the same time.
LocalAddress NewNodeAddress();

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
