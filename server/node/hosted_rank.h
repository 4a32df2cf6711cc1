// One rank that a shard server hosts: the memory of its replica, its shard owner, the thread that
// steps it, and its present trainer, if any. Trainers come and go, the rank stays.
#ifndef OPTSHARD_SERVER_NODE_HOSTED_RANK_H_
#define OPTSHARD_SERVER_NODE_HOSTED_RANK_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/attach/attachment.h"
#include "common/attach/doorbell.h"
#include "common/cancellation.h"
#include "common/dataplane/plane_notice.h"
#include "common/hyperparameters.h"
#include "common/ids.h"
#include "common/link/bell.h"
#include "common/link/memory_budget.h"
#include "common/link/process_handle.h"
#include "server/device/owner_device.h"
#include "server/node/attached_writes.h"
#include "server/node/owner_calls.h"
#include "server/node/owner_supervisor.h"
#include "server/node/rank_memory.h"
#include "server/node/step_rounds.h"
#include "server/node/trainer_place.h"
#include "server/shard/shard_owner.h"

namespace optshard {

// Thread-safe. A thread of its own, the rank's, answers the trainer and makes all calls to the
// shard owner. While there is no owner it says why, and the supervisor's thread forms one.
class HostedRank {
 public:
  struct Options {
    // Holds the first trainer's request, which says what the rank is. Where an earlier server has
    // left the memory, the rank continues from the state in it.
    std::shared_ptr<RankMemory> memory;
    // Prepares memory for the last admission of the request's spec, and has it kept; takes it back.
    std::function<absl::Status(const AttachRequest& grown)> prepare_memory;
    std::function<void()> drop_prepared;
    // Holds the memory beyond the end of this server. Then the rank joins the job again when a rank
    // is lost. 0: nobody.
    pid_t keeper = 0;
    // For starting the owner; everything else follows from the request.
    CoordinatorClient* coordinator = nullptr;
    absl::optional<int64_t> snapshot_memory_bytes;
    Cancellation* joining = nullptr;  // ends the wait for the other ranks
    PlaneFactory plane_factory;       // its planes use the replica in `memory`
    // The device that the request names, and a stream of it on which what trainers ask for comes in
    // order; none of both where it names none.
    absl::optional<OwnerDevice> device;
    std::shared_ptr<void> stream;
    // Of the last plane, for trainers. Written by the plane factory.
    std::shared_ptr<PlaneNotice> plane_notice = std::make_shared<PlaneNotice>();
    std::string owner_address;
    std::string coordinator_address;  // for trainers that want to ask it
    // Called with the owner's view once there is one, and with nullptr before the view is
    // destroyed.
    std::function<void(const ShardView*)> show;
    MemoryBudget* budget = nullptr;
    std::shared_ptr<const void> reservation;  // in the budget, for the owner's private memory
    std::shared_ptr<StepRounds> rounds;       // of all ranks of the optimizer
  };

  // Starts the thread, which joins the job.
  explicit HostedRank(Options options);
  // Ends the thread. Call Drain and WaitEnded first: otherwise the other ranks see a crash.
  ~HostedRank();

  // Admits a trainer. Waits until the owner has started and the predecessor's last step is done,
  // for at most the request's join timeout. `here` returns whether the trainer still waits.
  //   INVALID_ARGUMENT   the request differs from the first trainer's
  //   ALREADY_EXISTS     a living trainer has the rank
  //   DEADLINE_EXCEEDED  the predecessor's last step does not end
  //   UNAVAILABLE        the server is shutting down, or the trainer is gone
  // Also the error that kept the owner from starting, or with which it has failed.
  absl::StatusOr<std::shared_ptr<Attachment>> Attach(const AttachRequest& request,
                                                     ProcessHandle process,
                                                     const std::function<bool()>& here,
                                                     AttachReply* reply);
  // Adds param groups for the trainer, and gives it another doorbell. Waits for the other ranks,
  // for the request's timeout, and as long as `here` holds. Errors: proto/optshard/v1/attach.proto.
  AddGroupsReply AddGroups(const std::shared_ptr<Attachment>& attachment,
                           const AddGroupsRequest& request, const std::function<bool()>& here);
  // Records that the trainer is gone. `how` is text for error messages.
  void Detach(const std::shared_ptr<Attachment>& attachment, absl::string_view how);

  Rank rank() const { return rank_; }
  // Its parameters and gradients, of so many admissions; null: it has fewer.
  std::shared_ptr<const ReplicaSegments> replica(int admissions) const {
    return options_.memory->replica(admissions);
  }

  // Whether the owner has joined the job and works, and a trainer is attached.
  bool Ready() const;
  // Whether the owner could not start and no state would be lost: the rank can be dropped.
  bool Useless() const;

  // Makes the thread finish its step, leave the job cleanly and end. Does not wait for it.
  void Drain();
  // Whether the thread has ended by the deadline (Clock::Monotonic()).
  bool WaitEnded(absl::Time deadline) const;
  // Makes the owner's pending operation on the data plane fail with `reason`, and all later ones.
  void AbortPlane(const absl::Status& reason);

 private:
  // How often the thread looks for requests without being rung: a faulty trainer may overwrite
  // its bell.
  static constexpr absl::Duration kLook = absl::Seconds(1);

  // A trainer's request for groups, on its way to the rank's thread and back.
  struct GrowthCall {
    std::shared_ptr<Attachment> trainer;
    AddGroupsRequest asked;
    absl::optional<AddGroupsReply> reply;
  };

  enum class Phase { kStarting, kServing, kEnded };

  OwnerSupervisor<ShardOwner>::Options SupervisorOptions();
  absl::StatusOr<std::unique_ptr<ShardOwner>> StartOwner(bool torn);

  void Run();
  void FollowSupervisor();
  void BeginServing();
  void LoseOwner();
  void End(const absl::Status& failure);
  std::vector<Hyperparameters> LastHyperparameters(StepNumber finished) const;
  absl::Status TakeOwner();
  bool FinishRounds(Attachment* trainer);
  bool LostOthers() const;
  absl::Status Away() const;

  void ServeTrainer(const std::shared_ptr<Attachment>& trainer);
  bool HandleRequest(Attachment& trainer);
  absl::Status CheckComplete(const Attachment& trainer) const;
  std::shared_ptr<GrowthCall> TakeGrowth();
  bool HandleGrowth();
  AddGroupsReply Grow(Attachment& trainer, const AddGroupsRequest& asked);
  absl::Status GrowOwner(const AddGroupsRequest& asked, const absl::Status& prepared);
  void ServeNobody();
  void JudgeFailure(absl::Status* status, bool* broken) const;
  void SetBusy();
  void Finish();
  absl::Status GiveMissingValues(absl::Duration timeout);
  absl::Status CheckSuccessor(const AttachRequest& request) const;
  absl::Status TakePlace(const AttachRequest& request, const ProcessHandle& process)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<Attachment>> Admit(const AttachRequest& request,
                                                    ProcessHandle process, AttachReply* reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Settled() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static absl::Status ShuttingDown();
  std::string Name() const;

  const Options options_;
  const AttachRequest& first_;  // in options_.memory
  RankRecord& record_;          // likewise
  const Rank rank_;
  const bool takes_over_;  // from an earlier server, which had synchronised it
  const std::shared_ptr<AttachedWrites> writes_;

  // Used by the rank's thread only, except that others read the owner's view and plan, and what the
  // options say of its plane, once it serves.
  std::unique_ptr<OwnerSupervisor<ShardOwner>> supervisor_;  // null: the rank has ended
  ShardOwner* owner_ = nullptr;                              // the supervisor's; null: none
  absl::Status refusal_;  // what trainers are told without an owner
  OwnerCalls calls_;
  absl::Duration refusal_pause_;
  bool left_alone_ = false;  // some rank has left the job, or is lost: there is nothing to refuse
  // When the trainers of the previous server count as gone. Infinite without a previous server.
  absl::Time return_deadline_ = absl::InfiniteFuture();
  uint32_t heard_ = 0;

  // Wakes the thread while no trainer is attached.
  Bell control_;
  std::atomic<bool> draining_{false};

  mutable absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kStarting;
  absl::Status start_status_ ABSL_GUARDED_BY(mutex_);
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);  // not OK: of owners that come, too
  absl::Status away_ ABSL_GUARDED_BY(mutex_);     // of kStarting, where there is state already
  bool busy_ ABSL_GUARDED_BY(mutex_) =
      false;  // in what a trainer asked for, or the first synchronisation
  StepProgress progress_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<GrowthCall> growth_ ABSL_GUARDED_BY(mutex_);  // not begun yet
  TrainerPlace place_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_HOSTED_RANK_H_
