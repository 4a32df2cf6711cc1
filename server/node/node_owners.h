// The ranks that a shard server hosts, of all optimizers of its job.
#ifndef OPTSHARD_SERVER_NODE_NODE_OWNERS_H_
#define OPTSHARD_SERVER_NODE_NODE_OWNERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/attach/attachment.h"
#include "common/cancellation.h"
#include "common/dataplane/host_plane.h"
#include "common/link/memory_budget.h"
#include "common/link/process_handle.h"
#include "common/link/segment_place.h"
#include "server/node/descriptor_keeper.h"
#include "server/node/hosted_rank.h"
#include "server/node/memory_need.h"
#include "server/node/rank_device.h"
#include "server/node/rank_memory.h"
#include "server/node/rank_reservation.h"
#include "server/node/step_rounds.h"
#include "server/shard/inspection/shard_view_registry.h"

namespace optshard {

// Thread-safe.
class NodeOwners {
 public:
  struct Options {
    std::string job = "optshard";
    std::set<Rank> ranks;
    absl::optional<int64_t> memory_limit_bytes;
    absl::optional<int64_t> snapshot_memory_bytes;  // of each rank (ShardOwner::Options)
    CoordinatorClient* coordinator = nullptr;       // outlives this
    std::string coordinator_address;                // HOST:PORT of it, which trainers are told
    HostPlaneKind plane = HostPlaneKind::kAuto;
    std::string network = "lo";
    // Where the ranks' views are registered for inspection. Outlives this; null: nowhere.
    ShardViewRegistry* views = nullptr;
    std::string owner_address;           // HOST:PORT at which others reach the inspection
    DescriptorKeeper* keeper = nullptr;  // outlives this; null: the state ends with this process
    FindDevice find_device;              // for trainers whose parameters are on a device
  };

  explicit NodeOwners(Options options);
  // Call Drain first: otherwise the other ranks see a crash.
  ~NodeOwners();

  // Takes over the ranks of an earlier server from the memory that its keeper held. They join the
  // job at once and wait for their trainers. Call it before anything else. INVALID_ARGUMENT, or
  // what `find_device` returns, naming the memory that cannot be used: this server must not serve
  // then, because it would start the ranks without their state.
  absl::Status TakeOver(std::vector<KeptUnit> units);

  // What an admitted trainer gets.
  struct Admission {
    std::shared_ptr<HostedRank> rank;
    std::shared_ptr<Attachment> attachment;
    AttachReply reply;
    // The rank whose parameters the trainer uses: `rank` itself, or the one that shares its own.
    std::shared_ptr<HostedRank> parameters;

    // As AttachDescriptor says, of the last one of so many admissions; empty where the parameters
    // are not there.
    std::vector<int> descriptors(int admissions = 1) const;
  };
  // Errors as proto/optshard/v1/attach.proto lists them, and HostedRank::Attach. `here` says
  // whether the trainer still waits.
  absl::StatusOr<Admission> Attach(const AttachRequest& request, ProcessHandle process,
                                   const std::function<bool()>& here);

  // Whether every rank of this server, of each optimizer there is, has a trainer and can step.
  bool Ready() const;

  // What its ranks have taken of its memory.
  int64_t reserved_bytes() const { return budget_.reserved_bytes(); }

  // Whether the rank has begun a step, or the refusal of one, that another rank of this server has
  // not begun: it waits for that rank. False for a rank that is not hosted.
  bool WaitsForOthers(const std::string& optimizer, Rank rank) const;

  // Refuses trainers from now on, lets the running step end and leaves the job cleanly. Returns
  // whether that took at most `grace`; if not, pending operations on the data plane are aborted.
  bool Drain(absl::Duration grace);

 private:
  using Key = std::pair<std::string, Rank>;  // optimizer, rank

  absl::Status CheckRequest(const AttachRequest& request) const;
  absl::StatusOr<std::shared_ptr<HostedRank>> FindOrHost(const AttachRequest& request);
  absl::StatusOr<std::shared_ptr<RankMemory>> Allocate(const AttachRequest& request,
                                                       const MemoryNeed& need);
  absl::Status Prepare(RankMemory& memory, RankReservation& own, const AttachRequest& grown);
  // Where something is prepared.
  void DropPrepared(RankMemory& memory, RankReservation& own);
  void Unprepare(RankMemory& memory, RankReservation& own);
  absl::Status Forget(const Key& key);
  absl::StatusOr<MemoryNeed> NeedOf(const AttachRequest& request) const;
  absl::StatusOr<std::shared_ptr<HostedRank>> Host(const AttachRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<HostedRank>> Host(std::shared_ptr<RankMemory> memory,
                                                   int64_t own_bytes, int64_t prepared_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<std::shared_ptr<HostedRank>> Hosted() const;

  const Options options_;
  Cancellation joining_;  // ends the wait for ranks, which may never come, when the server ends
  mutable absl::Mutex mutex_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::shared_ptr<StepRounds>> rounds_ ABSL_GUARDED_BY(mutex_);
  MemoryBudget budget_;  // outlives the ranks' segments
  const std::shared_ptr<const SegmentPlace> on_host_;
  std::map<Key, std::shared_ptr<HostedRank>> hosted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_NODE_OWNERS_H_
